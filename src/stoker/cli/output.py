"""What a command prints on stdout: text for people, or with ``--json`` one object per line.

A command calls `emit` for each result and `note` for a hint. With ``--json``, everything else that
the process prints goes to stderr. `schema.json` describes the records.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from stoker.core.wrap import wrapped


@dataclass
class _Output:
    json: bool = False
    quiet: bool = False
    stream: TextIO | None = None
    lines: list[str] | None = None
    """The lines so far, if another process prints them."""

    def write(self, line: str) -> None:
        if self.lines is not None:
            self.lines.append(line)
        else:
            print(line, file=self.stream or sys.stdout, flush=True)


_current = _Output()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``--json`` and ``--quiet``."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--json", action="store_true", help="Print results as JSON, one object per line."
    )
    group.add_argument(
        "-q", "--quiet", action="store_true", help="Print only results, warnings and errors."
    )


def emit(record: str, text: str | Sequence[str] = (), /, **fields: Any) -> None:
    """Print a result: ``text`` for people, or a JSON object with ``record`` and the fields."""
    if _current.json:
        values = plain({"record": record, **fields})
        _current.write(json.dumps(values, ensure_ascii=False, allow_nan=False))
        return
    for line in [text] if isinstance(text, str) else text:
        _current.write(line)


def is_json() -> bool:
    """Return whether results are printed as JSON."""
    return _current.json


def note(text: str) -> None:
    """Print a hint for people, on stdout."""
    if not _current.json and not _current.quiet:
        _current.write(wrapped(text, _current.stream or sys.stdout))


def emit_error(faults: Sequence[str], code: int) -> None:
    """Print an error as a record; for people it is on stderr. Rank 0 prints it for all."""
    if _current.json and os.environ.get("RANK", "0") == "0":
        emit("error", faults=list(faults), code=code)


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: NaN and infinity become "nan", "inf" and "-inf"."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


@contextmanager
def opened(*, json: bool, quiet: bool = False) -> Iterator[None]:
    """Within it, results have the requested form, and with ``json`` nothing else is on stdout."""
    global _current  # noqa: PLW0603
    before, stdout = _current, sys.stdout
    _current = _Output(json, quiet, before.stream if before.json else stdout, before.lines)
    try:
        if json:
            sys.stdout = sys.stderr
        with _warnings_only() if quiet else nullcontext():
            yield
    finally:
        _current, sys.stdout = before, stdout


@contextmanager
def collected(*, json: bool, quiet: bool) -> Iterator[list[str]]:
    """Within it, results are appended to a list, for another process to print."""
    global _current  # noqa: PLW0603
    before, _current = _current, _Output(lines=[])
    lines = _current.lines
    assert lines is not None
    try:
        with opened(json=json, quiet=quiet):
            yield lines
    finally:
        _current = before


def replay(lines: Sequence[str]) -> None:
    """Print what another process has collected."""
    for line in lines:
        _current.write(line)


@contextmanager
def _warnings_only() -> Iterator[None]:
    from stoker.core.log import only_warnings

    with only_warnings():
        yield
