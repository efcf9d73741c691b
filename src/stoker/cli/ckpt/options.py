"""What can be written after ``stoker ckpt``; nothing here imports torch."""

import argparse
import sys
from collections.abc import Callable
from importlib import import_module

from stoker.cli.exit_codes import FAILED, USAGE
from stoker.core.errors import CheckpointError

ACTIONS = {
    "ls": ("ckpt.ls:ls", "list checkpoints: step, size, age, results, and whether they are whole"),
    "verify": ("ckpt.ls:verify", "check every byte of checkpoints; exit code 1 if one is broken"),
    "show": ("ckpt.show:show", "what is in a checkpoint, without loading it"),
    "diff": ("ckpt.diff:diff", "what differs between two checkpoints; exit code 1 if anything"),
    "prune": ("ckpt.prune:prune", "remove old checkpoints by the rules of training"),
    "export": ("ckpt.export:export", "write the weights as .safetensors, .pt or .onnx"),
    "import": ("ckpt.import_:import_", "make .safetensors of weights from elsewhere"),
}
"""Name → the function that does it, and what it does."""

_PATH = "a run folder, its checkpoints folder, or one checkpoint"
_ONE = "a checkpoint, or a run folder for its newest whole one"


def add_ckpt(command: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    command.set_defaults(print_help=command.print_help)
    actions = command.add_subparsers(dest="action", metavar="ACTION")
    for name, (_, help) in ACTIONS.items():
        action = actions.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        _ADD_OPTIONS[name](action)
        known = [option for one in action._actions for option in one.option_strings]
        action.set_defaults(known=known)


def _add_ls(action: argparse.ArgumentParser) -> None:
    action.add_argument("path", metavar="PATH", help=_PATH)
    action.add_argument(
        "--quick", action="store_true", help="look at manifests and file sizes, not at every byte"
    )
    _add_json(action)


def _add_verify(action: argparse.ArgumentParser) -> None:
    action.add_argument("path", metavar="PATH", help=_PATH)


def _add_show(action: argparse.ArgumentParser) -> None:
    action.add_argument("path", metavar="CKPT", help=_ONE)
    _add_json(action)


def _add_diff(action: argparse.ArgumentParser) -> None:
    action.add_argument("first", metavar="A", help=_ONE)
    action.add_argument("second", metavar="B", help=_ONE)
    action.add_argument(
        "--top", metavar="N", type=int, default=10, help="lines per kind of difference (10)"
    )


def _add_prune(action: argparse.ArgumentParser) -> None:
    action.add_argument("path", metavar="PATH", help="a run folder or its checkpoints folder")
    action.add_argument(
        "--keep", metavar="K", type=int, default=3, help="how many of the newest stay (3)"
    )
    action.add_argument(
        "--keep-every", metavar="N", type=int, help="those whose step is a multiple of N stay, too"
    )
    action.add_argument("--best", metavar="METRIC", help="the best by this result stays, too")
    action.add_argument(
        "--mode", metavar="min|max", help="which is best, where the name does not show it"
    )
    action.add_argument("--dry-run", action="store_true", help="only say what would go")


def _add_export(action: argparse.ArgumentParser) -> None:
    action.add_argument("path", metavar="CKPT", help=_ONE)
    _add_output(action, "a .safetensors, .pt or .onnx file")
    action.add_argument(
        "--ema", action="store_true", help="the averaged weights that the EMA hook holds"
    )
    action.add_argument(
        "--config",
        metavar="CFG",
        help="the config of the run, needed for .onnx",
    )
    action.add_argument(
        "--allow",
        metavar="PREFIX",
        action="append",
        default=[],
        help="let a YAML config name modules that begin so; may be repeated",
    )
    action.set_defaults(overrides=[])


def _add_import(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "file",
        metavar="FILE",
        help="a Lightning .ckpt, a .pt, .pth, .bin or .safetensors file, or a Hugging Face folder",
    )
    _add_output(action, "the .safetensors file to write")
    action.add_argument(
        "--trust",
        action="store_true",
        help="unpickle whatever is in the file, which can run any code",
    )


def _add_output(action: argparse.ArgumentParser, help: str) -> None:
    action.add_argument("-o", "--output", metavar="FILE", required=True, help=help)


def _add_json(action: argparse.ArgumentParser) -> None:
    action.add_argument("--json", action="store_true", help="for programs: JSON, with all values")


_ADD_OPTIONS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "ls": _add_ls,
    "verify": _add_verify,
    "show": _add_show,
    "diff": _add_diff,
    "prune": _add_prune,
    "export": _add_export,
    "import": _add_import,
}


def ckpt(options: argparse.Namespace) -> int:
    """Run one action; what is wrong with a checkpoint is said in a line."""
    if options.action is None:
        options.print_help()
        return USAGE
    home, _, name = ACTIONS[options.action][0].partition(":")
    action: Callable[[argparse.Namespace], int] = getattr(import_module(f"stoker.cli.{home}"), name)
    try:
        return action(options)
    except CheckpointError as error:
        fault = str(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        fault = f"'{error.filename}' cannot be read: {error.strerror}"
    print(f"stoker: {fault}", file=sys.stderr)
    return USAGE if options.action == "diff" else FAILED  # 1 is for a difference there
