"""``stoker ckpt``: inspect checkpoints, and move weights in and out.

This module declares the actions and their options; each action is a function of one of the other
modules.
"""

import argparse
import sys
from collections.abc import Callable
from importlib import import_module

from stoker.cli import output
from stoker.cli.common import FAILED, USAGE, add_allow, frozen_imports, set_known
from stoker.core.errors import CheckpointError
from stoker.core.wrap import wrapped

_PATH = "A run folder, its checkpoints folder, or one checkpoint."
_ONE = "A checkpoint, or a run folder for its newest valid checkpoint."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    parser.set_defaults(print_help=parser.print_help, json=False, quiet=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    for name, (_, help, add_options) in _ACTIONS.items():
        action = actions.add_parser(name, help=help, description=help)
        add_options(action)
        output.add_arguments(action)
        set_known(action)


def run(options: argparse.Namespace) -> int:
    """Run one action; print an invalid checkpoint as one line."""
    if options.action is None:
        options.print_help()
        return USAGE
    module, _, name = _ACTIONS[options.action][0].partition(":")
    with frozen_imports():
        implementation = import_module(f"stoker.cli.ckpt.{module}")
    action: Callable[[argparse.Namespace], int] = getattr(implementation, name)
    try:
        return action(options)
    except CheckpointError as error:
        fault = str(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        fault = f"'{error.filename}' cannot be read: {error.strerror}"
    print(wrapped(f"stoker: {fault}", sys.stderr), file=sys.stderr)
    code = USAGE if options.action == "diff" else FAILED  # diff uses 1 for a difference
    output.emit_error([fault], code)
    return code


def _add_ls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help=_PATH)
    parser.add_argument(
        "--quick", action="store_true", help="Check manifests and file sizes instead of every byte."
    )


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help=_PATH)


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="CKPT", help=_ONE)


def _add_diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", help=_ONE)
    parser.add_argument("second", metavar="B", help=_ONE)
    parser.add_argument(
        "--top",
        metavar="N",
        type=int,
        default=10,
        help="Lines per kind of difference. Default: 10.",
    )


def _add_prune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="A run folder or its checkpoints folder.")
    parser.add_argument(
        "--keep",
        metavar="K",
        type=int,
        default=3,
        help="Number of newest checkpoints to keep. Default: 3.",
    )
    parser.add_argument(
        "--keep-every",
        metavar="N",
        type=int,
        help="Also keep checkpoints whose step is a multiple of N.",
    )
    parser.add_argument("--best", metavar="METRIC", help="Also keep the best one by this metric.")
    parser.add_argument(
        "--mode", metavar="min|max", help="Which is best, if the metric's name does not show it."
    )
    parser.add_argument("--dry-run", action="store_true", help="Only print what would be removed.")


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="CKPT", help=_ONE)
    _add_output(parser, "The .safetensors, .pt or .onnx file to write.")
    parser.add_argument(
        "--ema", action="store_true", help="Export the averaged weights of the EMA hook."
    )
    parser.add_argument("--config", metavar="CFG", help="The config of the run; needed for .onnx.")
    add_allow(parser)
    parser.set_defaults(overrides=[])


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="A Lightning .ckpt, a .pt, .pth, .bin, .safetensors or .keras file, or a folder that "
        "the Hugging Face Trainer saved.",
    )
    _add_output(
        parser,
        "The folder to write a checkpoint to, which a run can start from; or a .safetensors file "
        "for the weights alone.",
    )
    parser.add_argument("--step", metavar="N", type=int, help="Updates so far, if unknown.")
    parser.add_argument("--epoch", metavar="N", type=int, help="Epochs finished, if unknown.")
    parser.add_argument(
        "--trust",
        action="store_true",
        help="Unpickle everything in the file, which can execute arbitrary code.",
    )


def _add_output(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help=help)


_ACTIONS = {
    "ls": ("ls:ls", "List checkpoints: step, size, age, metrics and validity.", _add_ls),
    "verify": (
        "ls:verify",
        "Check every byte of checkpoints. Exit code 1 if one is damaged.",
        _add_verify,
    ),
    "show": ("show:show", "Show the contents of a checkpoint without loading it.", _add_show),
    "diff": ("diff:diff", "Compare two checkpoints. Exit code 1 if they differ.", _add_diff),
    "prune": (
        "prune:prune",
        "Remove old checkpoints by the retention rules of training.",
        _add_prune,
    ),
    "export": ("export:export", "Write the weights to .safetensors, .pt or .onnx.", _add_export),
    "import": (
        "import_:import_",
        "Convert a checkpoint of another trainer, or its weights alone.",
        _add_import,
    ),
}
"""Action → its function, its help text, and the function that declares its options."""
