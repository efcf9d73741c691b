"""The table of commands, the parser, and the exit code of each kind of error."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import NoReturn

from stoker.cli.common import INTERRUPTED, OK, USAGE, set_known
from stoker.config.other_trainers import stoker_name
from stoker.config.yaml_text import ConfigError
from stoker.core.errors import RankFailed, UnsupportedURLError, did_you_mean

_COMMANDS = {
    "train": ("train", "Train the model that a config describes."),
    "evaluate": ("evaluate", "Evaluate trained weights on the validation data."),
    "predict": ("predict", "Write the model's outputs to a .npz, .jsonl or .csv file."),
    "explain": ("explain", "Show what a run would do: loop, metrics, parameters, schedule."),
    "lr-find": ("lr_find", "Sweep the learning rate and suggest a value."),
    "profile": ("profile", "Show where the time of a step goes, hook by hook."),
    "prove": ("prove", "Kill a training repeatedly and check that it ends at the same bits."),
    "report": ("report", "Write a report about runs: curves, configuration, goodput, model card."),
    "ckpt": ("ckpt", "List, verify, show, compare, prune, export and import checkpoints."),
    "board": ("board", "Serve a live dashboard of runs."),
    "run": ("run", "Run an unmodified script for Colossal-AI, LiBai, Orca or Towhee."),
    "config": ("config", "Print the resolved config, or where a value comes from."),
    "hooks": ("catalog", "List the available hooks, or describe one."),
    "metrics": ("catalog", "List the available metrics, or describe one."),
    "env": ("env", "Print versions, hardware and code state, as stored with each run."),
    "new": ("new", "Create a starter project that is ready to train."),
}
"""Command → the module of `stoker.cli` that implements it, and its help text."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    name = next((word for word in argv if not word.startswith("-")), "")
    command = import_module(f"stoker.cli.{_COMMANDS[name][0]}") if name in _COMMANDS else None
    parser = _parser(name, command)
    options, rest = parser.parse_known_args(argv)
    if command is None or options.command is None:
        parser.print_help()
        return USAGE
    try:
        _add_overrides(options, rest)
        code: int = command.run(options)
        sys.stdout.flush()
        return code
    except (ConfigError, UnsupportedURLError) as error:
        return _report_faults(getattr(error, "faults", [str(error)]))
    except RankFailed as failure:
        print(f"stoker: {failure}", file=sys.stderr)
        return failure.code
    except KeyboardInterrupt:
        print("stoker: stopped immediately by Ctrl-C", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `stoker config | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _report_faults(faults: Sequence[str]) -> int:
    if len(faults) > 1:
        print(f"stoker: {len(faults)} errors", file=sys.stderr)
    for fault in faults:
        print(f"stoker: {fault}", file=sys.stderr)
    return USAGE


def _add_overrides(options: argparse.Namespace, rest: list[str]) -> None:
    """Take the words that argparse could not place as overrides; reject unknown options."""
    accepts_overrides = getattr(options, "accepts_overrides", False)
    unknown = [word for word in rest if word.startswith("-") or not accepts_overrides]
    if unknown:
        word = next((word for word in unknown if word.startswith("-")), unknown[0])
        ours = stoker_name(word.lstrip("-").partition("=")[0])
        near = f"; set it with {ours}=VALUE" if ours else did_you_mean(word, options.known)
        raise ConfigError(f"'stoker {options.command}' has no option {word}{near}")
    if rest:
        options.overrides += rest


class _Parser(argparse.ArgumentParser):
    """Prints usage errors in one line, with the nearest valid spelling."""

    def error(self, message: str) -> NoReturn:
        subparsers = [one for one in self._actions if isinstance(one, argparse._SubParsersAction)]
        word = message.partition("invalid choice: ")[2].split(" ")[0].strip("'")
        if word and subparsers:
            name = f"{self.prog.partition(' ')[2]} {word}".strip()
            message = f"there is no command '{name}'{did_you_mean(word, subparsers[0].choices)}"
        self.exit(USAGE, f"stoker: {message} (stoker --help)\n")


def _parser(chosen: str, module: ModuleType | None) -> _Parser:
    """Return a parser that knows all commands, and the options of the chosen one."""
    parser = _Parser(
        prog="stoker",
        description="Train PyTorch models from a config file, with overrides on the command line.",
        epilog="Run 'stoker COMMAND --help' for the options of a command, 'stoker new DIR' for a "
        "project to start from.",
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (_, help) in _COMMANDS.items():
        command = commands.add_parser(name, help=help, description=help)
        if name == chosen and module is not None:
            module.add_arguments(command)
            set_known(command)
    return parser


def _version() -> str:
    from stoker import __version__

    return f"stoker {__version__}"
