"""What `Progress` draws: a bar in the width of the terminal, and results as a line or a table."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, TextIO

_SHORTEST_BAR, _LONGEST_BAR = 8, 30
_LOG_WIDTH = 120
"""The width of lines that go to a file."""
_NUMBER = 7
"""The usual length of a number, so that an epoch with short ones looks like the others."""
_REFLOWING = ("TMUX", "VTE_VERSION", "KITTY_WINDOW_ID", "KONSOLE_VERSION", "WT_SESSION")
"""Variables of terminals that wrap lines again when their window becomes narrower."""


def can_draw() -> bool:
    """Return whether a bar can be redrawn in place: on a terminal, or in a notebook."""
    if has_widgets():
        return True
    is_log = os.environ.get("CI", "").lower() not in ("", "0", "false")
    is_dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return sys.stderr.isatty() and not is_dumb and not is_log


@cache
def has_widgets() -> bool:
    """Return whether this is a notebook with ipywidgets, which rich uses to draw."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell" and find_spec("ipywidgets") is not None


def width_of(stream: TextIO) -> int:
    """Return the columns of a terminal at this moment, or the width of lines in a file."""
    if not stream.isatty():
        return _LOG_WIDTH
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        columns = 0
    given = os.environ.get("COLUMNS", "")
    if not columns and given.isdecimal():
        columns = int(given)
    return columns or 80


def format_clock(seconds: float) -> str:
    """Return a duration as ``0:12``, ``1:02:05`` or ``3d 04:05:06``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02d}:{minute:02d}:{second:02d}"
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"


def grid(cells: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Return names and values in as many columns as fit, read from top to bottom.

    Pairs that are wider than ``width`` come last, on two lines each.
    """
    wide = [cell for cell in cells if len(cell[0]) + len(cell[1]) + 2 > width]
    cells = [cell for cell in cells if cell not in wide]
    lines = [line for cell in wide for line in cell]
    for count in range(len(cells), 0, -1):
        rows = -(-len(cells) // count)
        columns = [cells[start : start + rows] for start in range(0, len(cells), rows)]
        sizes = [[max(map(len, part)) for part in zip(*column, strict=True)] for column in columns]
        if sum(name + value + 5 for name, value in sizes) - 3 <= width:
            return [*(_grid_row(columns, sizes, row) for row in range(rows)), *lines]
    return [*(f"{name}  {value}" for name, value in cells), *lines]


def _grid_row(
    columns: Sequence[Sequence[tuple[str, str]]], sizes: list[list[int]], row: int
) -> str:
    pairs = zip(columns, sizes, strict=True)
    found = [(column[row], size) for column, size in pairs if row < len(column)]
    return "   ".join(f"{n:<{w}}  {value:>{v}}" for (n, value), (w, v) in found)


@dataclass(slots=True, eq=False)
class Level:
    """One bar: its label, what it counts, how far it is, and what is shown after it.

    ``required`` is always shown, if need be on a second line; ``optional`` as far as it fits.
    """

    label: str
    total: int | None
    started: float
    done: int = 0
    required: Sequence[str] = ()
    optional: Sequence[str] = ()

    @property
    def count(self) -> str:
        """The steps done, of how many."""
        return f"{self.done}/{'?' if self.total is None else self.total}"

    def line(self, width: int) -> str:
        """Return one line without a bar, for a log."""
        fixed = [self.label, self.count, *self.required]
        room = width - len("  ".join(fixed))
        return "  ".join([*fixed, *_fitting(self.optional, room)[0]]).rstrip()

    def rows(self, width: int) -> "list[tuple[str, int, str]]":
        """Return each row as the text before the bar, the width of the bar, and the text after."""
        before, after = f"{self.label} ", f" {self.count}"
        rows = []
        if len(before) + _SHORTEST_BAR + len(after) > width:
            rows.append((self.label, 0, ""))
            before = ""
        room = width - len(before) - _SHORTEST_BAR - len(after)
        required, left_out, room = _fitting(self.required, room)
        optional, _, room = _fitting(self.optional, room)
        bar = min(_LONGEST_BAR, _SHORTEST_BAR + max(room, 0))
        rows.append((before, bar, "  ".join([after, *required, *optional])))
        while left_out:
            fitting, rest, _ = _fitting(left_out, width + 2)
            rows.append(("  ".join(fitting or rest[:1]), 0, ""))
            left_out = rest if fitting else rest[1:]
        return rows


def _fitting(items: Sequence[str], room: int) -> tuple[list[str], list[str], int]:
    """Return the items that fit, those that do not, and the room that is left."""
    fitting, left_out = [], []
    for item in items:
        if len(item) + 2 <= room:
            fitting.append(item)
            room -= len(item) + 2
        else:
            left_out.append(item)
    return fitting, left_out, room


class Screen:
    """The bars at the bottom of the terminal, below everything that is printed meanwhile."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=sys.stderr)
        self._stream = sys.stderr
        self._plain = "utf" not in (getattr(sys.stderr, "encoding", None) or "utf").lower()
        self._levels: Sequence[Level] = ()
        self._lengths: list[int] = []
        self._live = Live(
            get_renderable=self._picture,
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=not has_widgets(),  # a notebook shows printed lines anyway
            redirect_stderr=not has_widgets(),
            vertical_overflow="crop",
        )
        self._live.start()

    def draw(self, levels: Sequence[Level]) -> None:
        """Draw the bars in the width that the terminal has now."""
        self._levels = levels
        if not has_widgets():
            self._console.width = width_of(self._stream)
            self._erase_wrapped(self._console.width)
        self._live.refresh()

    def close(self) -> None:
        """Remove the bars."""
        self._live.stop()

    def _picture(self) -> Any:
        from rich.text import Text

        width = self._console.width - 1  # a full line would wrap on some terminals
        lines = []
        for level in self._levels:
            for before, bar, after in level.rows(width):
                full, rest = _bar(level, bar, plain=self._plain)
                lines.append(Text(before).append(full, "cyan").append(rest, "dim").append(after))
        self._lengths = [len(line) for line in lines]
        return Text("\n", no_wrap=True, overflow="crop").join(lines)

    def _erase_wrapped(self, width: int) -> None:
        """Erase the rows that a narrower window has added to what was drawn before."""
        from rich.control import Control
        from rich.segment import ControlType

        if not any(name in os.environ for name in _REFLOWING):
            return
        for _ in range(sum(max(0, (length - 1) // width) for length in self._lengths)):
            erase = (ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)
            self._console.control(Control(*erase))


def _bar(level: Level, width: int, *, plain: bool) -> tuple[str, str]:
    """Return the part of a bar that is done, and the rest; their characters differ, too."""
    share = min(1.0, level.done / level.total) if level.total else 0.0
    full = int(share * width)
    return ("#" if plain else "━") * full, ("-" if plain else "─") * (width - full)


def results(head: str, cells: Sequence[tuple[str, str]], tail: str, width: int) -> str:
    """Return results as one line if it fits, else as a line with a small table below."""
    parts = [head, *(f"{name} {value}" for name, value in cells), tail]
    shorter = sum(max(0, _NUMBER - len(value)) for _, value in cells)
    if len(line := "  ".join(parts)) + shorter <= width or not cells:
        return line
    padded = [(name, value.rjust(_NUMBER)) for name, value in cells]
    return "\n".join([f"{head}  {tail}", *(f"  {row}" for row in grid(padded, width - 2))])
