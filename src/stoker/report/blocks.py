"""What a report is made of: each form of it draws the same blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stoker.report.facts import Curve


@dataclass(frozen=True)
class Heading:
    """A heading; level 2 begins a section, level 3 a part of it."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph; ``warns`` for what a reader must not miss."""

    text: str
    warns: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells below names; without names, the first cell of a row is its name."""

    rows: Sequence[Sequence[str]]
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Code:
    """Text as it is, that a reader may unfold."""

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
    """Curves of one name, over each other."""

    name: str
    lines: Sequence[Line]


@dataclass(frozen=True)
class Charts:
    """Charts beside each other."""

    charts: Sequence[Chart]


@dataclass(frozen=True)
class Shares:
    """Parts of a whole, by name."""

    parts: Sequence[tuple[str, float]]


Block: TypeAlias = Heading | Text | Table | Code | Charts | Shares
