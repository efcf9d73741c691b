"""Reading the command line, and how a command ends.

Exit codes: 0 done, 1 an error while it ran, 2 a command or config that cannot be, 130 after
Ctrl-C, 143 after a signal to end.
"""

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module

from stoker.cli.board import add_board
from stoker.cli.ckpt.options import ACTIONS, add_ckpt
from stoker.cli.exit_codes import INTERRUPTED, OK, USAGE
from stoker.config.other_trainers import right_spelling
from stoker.config.run_section import help_lines
from stoker.config.yaml_text import ConfigError
from stoker.core.errors import RankFailed, UnsupportedURLError, did_you_mean

_COMMANDS = {
    "train": ("train:train", "train what a config describes"),
    "evaluate": ("train:evaluate", "results of trained weights over the validation data"),
    "predict": ("train:predict", "what trained weights make of data, as .npz, .jsonl or .csv"),
    "explain": ("explain:explain", "the loop, hooks, parameters, calendar and LR curve of a run"),
    "lr-find": ("lr_find:lr_find", "sweep the learning rate and suggest one"),
    "profile": ("profile:profile", "where the time of a step goes, hook by hook"),
    "prove": ("prove:prove", "prove that a training that is killed ends at the same bits"),
    "report": ("report:report", "a file about runs: curves, configuration, goodput, model card"),
    "ckpt": (
        "ckpt.options:ckpt",
        "list, verify, show, compare, prune, export and import checkpoints",
    ),
    "board": ("board:board", "a page that shows runs while they live"),
    "run": ("run:run", "run a script for Colossal-AI, LiBai, Orca or Towhee as it is"),
    "config": ("info:config", "print the resolved config, or where a value comes from"),
    "hooks": ("info:hooks", "list the hooks there are, or describe one"),
    "metrics": ("info:metrics", "list the metrics there are"),
    "env": ("info:env", "versions, hardware and code, as they are stored with a run"),
    "new": ("new:new", "make a starter project that trains at once"),
}
_WITH_CONFIG = (
    *("train", "evaluate", "predict", "explain", "lr-find", "profile", "prove", "config"),
)

_OVERRIDES = """\
overrides:
  optimizer.lr=3e-4          set a value, typed by what the call takes
  +hooks=EarlyStopping       add to a list
  ~hooks.1                   remove a value

fields of run (all have a default):
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    parser = _parser()
    options, rest = parser.parse_known_args(argv)
    if options.command is None:
        parser.print_help()
        return USAGE
    try:
        _take_overrides(options, rest)
        home, _, name = _COMMANDS[options.command][0].partition(":")
        with modules_that_stay():
            module = import_module(f"stoker.cli.{home}")
        command: Callable[[argparse.Namespace], int] = getattr(module, name)
        code = command(options)
        sys.stdout.flush()
        return code
    except (ConfigError, UnsupportedURLError) as error:
        return _refuse(error.faults if isinstance(error, ConfigError) else [str(error)])
    except RankFailed as failure:
        print(f"stoker: {failure}", file=sys.stderr)
        return failure.code
    except KeyboardInterrupt:
        print("stoker: stopped at once by Ctrl-C", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `stoker config | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


@contextmanager
def modules_that_stay() -> Iterator[None]:
    """What is imported within it is no garbage, and is not searched for any.

    Torch alone brings half a million objects. To search them takes a part of the time of importing
    them, and most of a second when the process ends.
    """
    if not _process_is_ours() or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@cache
def _process_is_ours() -> bool:
    """Whether the command began with nothing; a program that calls it has objects of its own."""
    return "torch" not in sys.modules


def _refuse(faults: Sequence[str]) -> int:
    if len(faults) > 1:
        print(f"stoker: {len(faults)} faults", file=sys.stderr)
    for fault in faults:
        print(f"stoker: {fault}", file=sys.stderr)
    return USAGE


def _take_overrides(options: argparse.Namespace, rest: list[str]) -> None:
    """What argparse could not place is an override, or an option that does not exist."""
    wrong = [word for word in rest if word.startswith("-")]
    if wrong or (rest and options.command not in _WITH_CONFIG):
        word = (wrong or rest)[0]
        name = word.lstrip("-").partition("=")[0]
        said = right_spelling(name).replace("here it is", "values are given as key=value:")
        near = said or did_you_mean(word, options.known)
        raise ConfigError(f"'stoker {options.command}' has no option {word}{near}")
    if options.command in _WITH_CONFIG:
        options.overrides += rest


class _Parser(argparse.ArgumentParser):
    """Says its errors as the other ones are said, with the nearest right spelling."""

    def error(self, message: str) -> "argparse.NoReturn":  # type: ignore[name-defined]
        word = message.partition("invalid choice: ")[2].split(" ")[0].strip("'")
        if word:
            within = self.prog.partition(" ")[2]
            known = ACTIONS if within == "ckpt" else _COMMANDS
            name = f"{within} {word}".strip()
            message = f"there is no command '{name}'{did_you_mean(word, known)}"
        self.exit(USAGE, f"stoker: {message} (stoker --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="stoker",
        description="Train PyTorch models from a config: say it in a file, override it in a word.",
        epilog="stoker COMMAND --help says more; a new folder to start from: stoker new my-project",
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (_, help) in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=help,
            description=help[0].upper() + help[1:] + ".",
            epilog=_OVERRIDES + _fields() if name in _WITH_CONFIG else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name in _WITH_CONFIG:
            _add_config(command)
        if name in _ADD_OPTIONS:
            _ADD_OPTIONS[name](command)
        known = [option for action in command._actions for option in action.option_strings]
        command.set_defaults(known=known)
    return parser


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument("config", metavar="CFG", help="a .py or .yaml file, or a run folder")
    command.add_argument(
        "overrides", metavar="key=value", nargs="*", default=[], help="changes; see below"
    )
    command.add_argument(
        "--allow",
        metavar="PREFIX",
        action="append",
        default=[],
        help="let a YAML name modules that begin so, beside torch, stoker, torchmetrics and those "
        "in its own folder; may be repeated",
    )


def _add_train(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--fast-dev-run", action="store_true", help="one batch of everything, nothing written"
    )
    command.add_argument("--eval-only", action="store_true", help="the same as stoker evaluate CFG")
    command.add_argument(
        "--resume", metavar="HOW", help="auto, must, never or a checkpoint; the same as run.resume="
    )
    _add_weights(command)
    _add_launch(command)


def _add_evaluate(command: argparse.ArgumentParser) -> None:
    _add_weights(command)
    _add_launch(command)


def _add_launch(command: argparse.ArgumentParser) -> None:
    several = command.add_argument_group("several processes")
    several.add_argument("--nproc", type=int, metavar="N", help="how many on this machine")
    several.add_argument("--on", choices=("ray", "spark"), help="run on a cluster instead")
    several.add_argument("--workers", type=int, metavar="N", help="how many there")
    several.add_argument("--address", metavar="WHERE", help="which; else that of the environment")
    several.add_argument(
        "--max-restarts", type=int, metavar="K", help="start again after a failure (0 times)"
    )


def _add_weights(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--weights",
        metavar="FILE",
        help="a .safetensors file; that of the run folder when not given",
    )


def _add_predict(command: argparse.ArgumentParser) -> None:
    _add_weights(command)
    command.add_argument(
        "-o", "--output", metavar="FILE", default="predictions.npz", help=".npz, .jsonl or .csv"
    )


def _add_lr_find(command: argparse.ArgumentParser) -> None:
    command.add_argument("--from", dest="low", type=float, default=1e-7, help="lowest rate tried")
    command.add_argument("--to", dest="high", type=float, default=1.0, help="highest rate tried")
    command.add_argument("--steps", type=int, default=100, help="updates of the sweep")
    command.add_argument("-o", "--output", metavar="FILE", default="lr-find.png", help="the plot")


def _add_profile(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--steps", type=int, default=50, metavar="N", help="steps to time, and to count in (50)"
    )
    command.add_argument("--warmup", type=int, default=5, metavar="N", help="steps before (5)")
    command.add_argument("--trace", metavar="FILE", help="a trace for chrome://tracing or Perfetto")
    command.add_argument("--json", metavar="FILE", help="the numbers")
    command.add_argument("--nproc", type=int, metavar="N", help="processes on this machine")
    only_here = dict.fromkeys(("on", "workers", "address", "max_restarts"))
    command.set_defaults(folder=None, **only_here)


def _add_prove(command: argparse.ArgumentParser) -> None:
    command.add_argument("--kills", type=int, default=5, metavar="N", help="how often (5)")
    command.add_argument(
        "--at", metavar="KINDS", help="moments: some of step,save,eval,data (all of them)"
    )
    command.add_argument("--seed", type=int, default=0, help="another one: other moments (0)")
    command.add_argument("--nproc", type=int, default=1, metavar="N", help="processes (1)")
    command.add_argument("--keep", action="store_true", help="keep the folder it works in")


def _add_report(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "runs", metavar="RUN", nargs="+", help="a run folder; several are compared"
    )
    command.add_argument(
        "-o", "--output", metavar="FILE", help="what to write (report.html, report.md, report.png)"
    )
    command.add_argument(
        "--format", choices=("html", "md", "png"), help="the same as the end of FILE (html)"
    )
    command.add_argument(
        "--goodput", action="store_true", help="only print the share of useful time, and the losses"
    )
    command.add_argument(
        "--quick", action="store_true", help="look at sizes of checkpoints, not at every byte"
    )


def _add_run(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--prefer-dialects",
        action="store_true",
        help="take the dialects also where the old package is installed",
    )
    command.add_argument(
        "--explain",
        action="store_true",
        help="print which hooks act where, instead of training",
    )
    command.add_argument("script", metavar="SCRIPT", help="a Python file")
    command.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help="for the script")


def _add_config_command(command: argparse.ArgumentParser) -> None:
    command.add_argument("--why", metavar="KEY", help="where the value of KEY comes from")
    command.add_argument(
        "--check", action="store_true", help="also check every argument against what it is for"
    )


def _add_name(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", nargs="?", metavar="NAME", help="describe this one")


def _add_folder(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", metavar="DIR", help="the folder to make")


_ADD_OPTIONS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "train": _add_train,
    "evaluate": _add_evaluate,
    "predict": _add_predict,
    "lr-find": _add_lr_find,
    "profile": _add_profile,
    "prove": _add_prove,
    "board": add_board,
    "report": _add_report,
    "ckpt": add_ckpt,
    "run": _add_run,
    "config": _add_config_command,
    "hooks": _add_name,
    "metrics": _add_name,
    "new": _add_folder,
}


@cache
def _fields() -> str:
    """The fields of ``run``, from their types."""
    lines = []
    for name, kind, default, help in help_lines():
        lines.append(f"  {f'{name}={default}':<32} {help} ({kind})")
    return "\n".join(lines)


def _version() -> str:
    from stoker import __version__

    return f"stoker {__version__}"
