"""A report as Markdown."""

import re
from collections.abc import Sequence
from functools import singledispatch

from stoker.report.document import Block, Charts, Code, Heading, Shares, Table, Text
from stoker.report.goodput import format_share

_MARKUP = re.compile(r"([\\`*_\[\]<>|~&$])")


def markdown_text(title: str, blocks: Sequence[Block], picture: str | None = None) -> str:
    """Return the text; ``picture`` is the name of the file that shows the curves."""
    parts = [f"# {_text(title)}"]
    for block in blocks:
        if isinstance(block, Charts):
            parts.append(f"![curves]({picture})" if picture is not None else _list_curves(block))
        else:
            parts.append(_draw(block))
    return "\n\n".join(parts) + "\n"


def _text(text: str) -> str:
    """Return text without markup, in one line."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))


def _list_curves(block: Charts) -> str:
    names = ", ".join(_text(chart.name) for chart in block.charts)
    return f"To draw the curves, pip install 'stoker\\[plot\\]'. Recorded: {names}."


@singledispatch
def _draw(block: Block) -> str:
    raise TypeError(type(block).__name__)


@_draw.register
def _(block: Heading) -> str:
    return f"{'#' * block.level} {_text(block.text)}"


@_draw.register
def _(block: Text) -> str:
    return f"**{_text(block.text)}**" if block.warns else _text(block.text)


@_draw.register
def _(block: Table) -> str:
    width = len(block.names) or max(map(len, block.rows), default=1)
    names = block.names or [""] * width
    rows = [[_text(cell) for cell in row] for row in block.rows]
    lines = [[_text(name) for name in names], ["---"] * width, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@_draw.register
def _(block: Code) -> str:
    longest = max((len(run) for run in re.findall("`+", block.text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"**{_text(block.title)}**\n\n{fence}\n{block.text.rstrip()}\n{fence}"


@_draw.register
def _(block: Shares) -> str:
    total = sum(value for _, value in block.parts) or 1.0
    return "\n".join(f"- {_text(n)}: {format_share(value / total)}" for n, value in block.parts)
