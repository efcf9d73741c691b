"""The blocks of a report. Every format draws the same blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stoker.rundir.reader import Curve


@dataclass(frozen=True)
class Heading:
    """A heading: level 2 for a section, level 3 for a part of it."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph; ``warns`` highlights it."""

    text: str
    warns: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells below column names; without names, the first cell of a row is its name."""

    rows: Sequence[Sequence[str]]
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Code:
    """Preformatted text that a reader can unfold."""

    title: str
    text: str


@dataclass(frozen=True)
class Line:
    """A curve of one run."""

    run: str
    color: int
    curve: Curve


@dataclass(frozen=True)
class Chart:
    """Curves of one name in one diagram."""

    name: str
    lines: Sequence[Line]


@dataclass(frozen=True)
class Charts:
    """Charts next to each other."""

    charts: Sequence[Chart]


@dataclass(frozen=True)
class Shares:
    """Parts of a total, by name."""

    parts: Sequence[tuple[str, float]]


Block: TypeAlias = Heading | Text | Table | Code | Charts | Shares
