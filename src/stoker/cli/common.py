"""What commands share: exit codes, the options of a config, and imports that start fast.

A run that saved itself after SIGTERM exits with 143.
"""

import argparse
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from stoker.core.errors import ConfigError, did_you_mean_path

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


@contextmanager
def frozen_imports() -> Iterator[None]:
    """Exclude everything imported inside the block from garbage collection.

    Torch alone creates half a million objects. Scanning them slows down their import and takes
    most of a second at exit.
    """
    if not _owns_process() or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@cache
def _owns_process() -> bool:
    """Return False inside a program that imported torch itself and may have garbage to collect."""
    return "torch" not in sys.modules


_OVERRIDES = """\
overrides:
  optimizer.lr=3e-4          set a value; its type is checked
  +hooks=EarlyStopping       append to a list
  ~hooks.1                   remove a value

"""


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the config, its overrides and ``--allow``."""
    parser.epilog = (
        f"{_OVERRIDES}\n{parser.prog} --help-all lists the fields of run, as run.epochs."
    )
    parser.add_argument(
        "--help-all", action=_HelpAll, nargs=0, help="Also show the fields of run, and exit."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(accepts_overrides=True)
    parser.add_argument("config", metavar="CFG", help="A .py or .yaml file, or a run folder.")
    parser.add_argument(
        "overrides", metavar="key=value", nargs="*", default=[], help="Overrides; see below."
    )
    add_allow(parser)


class _HelpAll(argparse.Action):
    """Prints the help of a command together with the fields of ``run``."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.epilog = f"{_OVERRIDES}\nfields of run (all optional):\n{_run_fields()}"
        parser.print_help()
        parser.exit()


def run_folder(path: Path) -> Path:
    """Return the path of a run, checked."""
    from stoker.rundir.folder import holds_run

    if not path.exists():
        raise ConfigError(f"there is no '{path}'{did_you_mean_path(path)}")
    if not path.is_dir() or not holds_run(path):
        runs = [str(one) for one in runs_in(path)]
        near = f"; did you mean {' '.join(runs[:5])}?" if runs else ""
        found = "has no files of a run" if path.is_dir() else "is a file"
        raise ConfigError(f"'{path}' is not a run folder{near or f': it {found}'}")
    return path


def runs_in(folder: Path) -> list[Path]:
    """Return the runs in a folder."""
    from stoker.rundir.folder import holds_run

    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    return [one for one in inside if one.is_dir() and holds_run(one)]


def add_allow(parser: argparse.ArgumentParser) -> None:
    """Add ``--allow``, which extends what a YAML config may name, read and write."""
    parser.add_argument(
        "--allow",
        metavar="WHAT",
        action="append",
        default=[],
        help="Let a YAML config use names with this prefix, such as mypackage., or this path. "
        "Without it, a YAML names parts of torch, stoker and torchmetrics that only compute, and "
        "modules in its own folder. Repeatable.",
    )


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Add ``--weights``."""
    parser.add_argument(
        "--weights",
        metavar="FILE",
        help="A .safetensors file. Default: the newest weights in the run folder.",
    )


def given_path(text: str, what: str = "path") -> Path:
    """Return the path of what a user wants read; of a URL in a store, that of its copy here."""
    from stoker.storage.mirror import located

    try:
        return located(text, what)
    except (OSError, ImportError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{what} '{text}' cannot be read: {reason}") from error


def output_path(text: str, option: str, suffixes: Sequence[str] = ()) -> Path:
    """Return the path of a file to write, checked before any work is done."""
    from stoker.storage import local_path

    path = local_path(text, option)
    if suffixes and path.suffix not in suffixes:
        *most, last = suffixes
        ends = f"{', '.join(most)} or {last}" if most else last
        raise ConfigError(f"{option} must end in {ends}, got '{text}'")
    if path.is_dir():
        raise ConfigError(f"{option} '{path}' is a folder, expected a file to write")
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ConfigError(f"{option} '{path}' cannot be written: '{parent}' is no writable folder")
    return path


def set_known(parser: argparse.ArgumentParser) -> None:
    """Store the options of a parser, from which a misspelled one gets its suggestion."""
    known = [option for action in parser._actions for option in action.option_strings]
    parser.set_defaults(known=known)


def _run_fields() -> str:
    from stoker.config.run_section import help_lines

    return "\n".join(
        f"  {f'{name}={default}':<32} {help} ({kind})" for name, kind, default, help in help_lines()
    )
