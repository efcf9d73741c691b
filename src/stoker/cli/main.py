"""The table of commands, the parser, and the exit code of each kind of error."""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import takewhile
from types import ModuleType
from typing import NoReturn

from stoker.cli import output
from stoker.cli.common import FAILED, INTERRUPTED, OK, USAGE, set_known
from stoker.cli.unknown_options import Unknown, fault, listed, separate
from stoker.core.errors import (
    ConfigError,
    RankFailed,
    StokerError,
    UnsupportedURLError,
    did_you_mean,
    is_sentence,
    sentence,
)
from stoker.core.wrap import wrapped

_COMMANDS = {
    "train": ("train", "Train the model that a config describes."),
    "evaluate": ("evaluate", "Evaluate trained weights on the validation data."),
    "predict": ("predict", "Write the model's outputs to a .npz, .jsonl or .csv file."),
    "explain": ("explain", "Show what a run would do: loop, metrics, parameters, schedule."),
    "lr-find": ("lr_find", "Sweep the learning rate and suggest a value."),
    "profile": ("profile", "Show where the time of a step goes, hook by hook."),
    "prove": ("prove", "Kill a training repeatedly and check that it ends at the same bits."),
    "status": ("status", "Show the state of runs: step, epoch, metrics, time left."),
    "wait": ("wait", "Wait until a run has ended; the exit code says how."),
    "report": ("report", "Write a report about runs: curves, configuration, goodput, model card."),
    "ckpt": ("ckpt", "List, verify, show, compare, prune, export and import checkpoints."),
    "data": ("data", "List, index and check the files of a stream."),
    "board": ("board", "Serve a live dashboard of runs."),
    "run": ("run", "Run an unmodified script for Colossal-AI, LiBai, Orca or Towhee."),
    "config": ("config", "Print the resolved config, or where a value comes from."),
    "hooks": ("catalog", "List the available hooks, or describe one."),
    "metrics": ("catalog", "List the available metrics, or describe one."),
    "env": ("env", "Print versions, hardware and code state, as stored with each run."),
    "new": ("new", "Create a starter project that is ready to train."),
    "schema": ("schema", "Print the JSON schema of what --json prints."),
}
"""Command → the module of `stoker.cli` that implements it, and its help text."""

_ELSEWHERE = {
    **dict.fromkeys(("fit", "resume", "start", "finetune", "launch"), "train"),
    **dict.fromkeys(("test", "validate", "val"), "evaluate"),
    **dict.fromkeys(("infer", "inference", "generate"), "predict"),
    **dict.fromkeys(("ls", "list", "runs", "ps", "logs", "show"), "status"),
    **dict.fromkeys(("convert", "import", "checkpoint", "model"), "ckpt"),
    **dict.fromkeys(("init", "create", "quickstart"), "new"),
    **dict.fromkeys(("tune", "lr", "find-lr"), "lr-find"),
    **dict.fromkeys(("ui", "dashboard", "serve", "tensorboard"), "board"),
    **dict.fromkeys(("summary", "describe"), "explain"),
    **{f"ckpt {name}": "ckpt import" for name in ("convert", "load")},
    **{f"ckpt {name}": "ckpt export" for name in ("save", "consolidate", "merge")},
    **{name: f"--{name}" for name in ("help", "version")},
}
"""Names of commands elsewhere, and of ours."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    name = next((word for word in argv if not word.startswith("-")), "")
    command = import_module(f"stoker.cli.{_COMMANDS[name][0]}") if name in _COMMANDS else None
    _replace_characters()
    parser, chosen = _parser(name, command)
    with output.opened(json=_wants_json(argv, name)):
        return _run(parser, chosen, command, argv)


def _wants_json(argv: Sequence[str], name: str) -> bool:
    """Return whether ``--json`` is given, and not as an argument of a script."""
    options = list(argv)
    if name == "run":
        after = options[options.index(name) + 1 :]
        options = list(takewhile(lambda word: word.startswith("-"), after))
    return "--json" in options


def _run(
    parser: "_Parser", chosen: "_Parser | None", command: ModuleType | None, argv: Sequence[str]
) -> int:
    try:
        words, unknown = _separate(argv, chosen)
        options, rest = parser.parse_known_args(words)
        if command is None or options.command is None:
            parser.print_help()
            return USAGE
        _check_words(options, rest, unknown)
        with output.opened(json=options.json, quiet=options.quiet):
            code: int = command.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `stoker config | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        print("stoker: stopped immediately by Ctrl-C", file=sys.stderr)
        output.emit_error(["stopped immediately by Ctrl-C"], INTERRUPTED)
        return INTERRUPTED
    except Exception as error:
        if isinstance(error, StokerError | ValueError | TypeError) and is_sentence(error):
            return _report(error)
        output.emit_error([f"{type(error).__name__}: {error}"], FAILED)
        raise


def _report(error: StokerError | ValueError | TypeError) -> int:
    """Print an error in one line, or its faults in one line each; return the exit code."""
    if isinstance(error, ConfigError):
        faults: Sequence[str] = error.faults
    else:
        faults = [sentence(error)]
    if len(faults) > 1:
        print(f"stoker: {len(faults)} errors", file=sys.stderr)
    for one in faults:
        print(wrapped(f"stoker: {one}", sys.stderr), file=sys.stderr)
    is_usage = isinstance(error, ConfigError | UnsupportedURLError)
    code = error.code if isinstance(error, RankFailed) else USAGE if is_usage else FAILED
    output.emit_error(faults, code)
    return code


def _separate(
    argv: Sequence[str], chosen: argparse.ArgumentParser | None
) -> tuple[list[str], list[Unknown]]:
    """Take unknown options out of the words of a command that reads a config."""
    if chosen is None or not chosen.get_default("accepts_overrides"):
        return list(argv), []
    return separate(argv, chosen.get_default("known"))


def _check_words(options: argparse.Namespace, rest: list[str], unknown: list[Unknown]) -> None:
    """Take the words that argparse could not place as overrides; reject unknown options."""
    if getattr(options, "accepts_overrides", False):
        options.overrides += rest
        rest = []
    if rest:
        word = next((word for word in rest if word.startswith("-")), rest[0])
        near = did_you_mean(word, options.known) or listed(options.command)
        raise ConfigError(f"'stoker {options.command}' has no option {word}{near}")
    if unknown:
        raise ConfigError(*_faults_of_options(options, unknown))


def _faults_of_options(options: argparse.Namespace, unknown: list[Unknown]) -> list[str]:
    """Return a fault for each unknown option, and those of the config and its overrides."""
    from stoker.config import load
    from stoker.config.other_trainers import use_instead

    faults: list[str] = []
    suggestions = None
    try:
        suggestions = load(options.config, allow=options.allow).suggestions()
        load(options.config, options.overrides, allow=options.allow)
    except ConfigError as error:
        faults += error.faults

    def override(name: str, value: str | None, similar: bool) -> str:
        if suggestions is not None:
            return suggestions.instead_of(name, value, similar=similar)
        return use_instead(name)

    return [fault(one, options.command, options.known, override) for one in unknown] + faults


def _replace_characters() -> None:
    """Print a question mark for a character that the terminal's encoding does not have."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and "utf" not in stream.encoding.lower():
            stream.reconfigure(errors="replace")


class _Parser(argparse.ArgumentParser):
    """Prints usage errors in one line, with the nearest valid spelling."""

    def error(self, message: str) -> NoReturn:
        subparsers = [one for one in self._actions if isinstance(one, argparse._SubParsersAction)]
        word = message.partition("invalid choice: ")[2].split(" ")[0].strip("'")
        if word and subparsers:
            name = f"{self.prog.partition(' ')[2]} {word}".strip()
            near = did_you_mean(word, subparsers[0].choices)
            if name in _ELSEWHERE:
                near = f"; use 'stoker {_ELSEWHERE[name]}'"
            message = f"there is no command '{name}'{near}"
        output.emit_error([message], USAGE)
        self.exit(USAGE, f"stoker: {message} ({self.prog} --help)\n")


def _parser(chosen: str, module: ModuleType | None) -> tuple[_Parser, _Parser | None]:
    """Return a parser that knows all commands, and that of the chosen one with its options."""
    parser = _Parser(
        prog="stoker",
        description="Train PyTorch models from a config file, with overrides on the command line.",
        epilog="Run 'stoker COMMAND --help' for the options of a command, 'stoker new DIR' for a "
        "project to start from.",
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    parsers = {
        name: commands.add_parser(name, help=help, description=help, allow_abbrev=False)
        for name, (_, help) in _COMMANDS.items()
    }
    if module is not None:
        module.add_arguments(parsers[chosen])
        if chosen not in ("ckpt", "data"):  # their actions have them
            output.add_arguments(parsers[chosen])
        set_known(parsers[chosen])
    return parser, parsers.get(chosen)


def _version() -> str:
    from stoker import __version__

    return f"stoker {__version__}"
