"""A report as Markdown."""

import re
from collections.abc import Sequence
from functools import singledispatch

from stoker.report.blocks import Block, Charts, Code, Heading, Shares, Table, Text
from stoker.report.format import said_share

_MARKUP = re.compile(r"([\\`*_\[\]<>|~&$])")


def text_of(title: str, blocks: Sequence[Block], picture: str | None = None) -> str:
    """The text; ``picture`` is the file that shows the curves, beside it."""
    parts = [f"# {_text(title)}"]
    for block in blocks:
        if isinstance(block, Charts):
            parts.append(f"![curves]({picture})" if picture is not None else _listed(block))
        else:
            parts.append(_written(block))
    return "\n\n".join(parts) + "\n"


def _text(text: str) -> str:
    """Text that is no markup, in one line."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))


def _listed(block: Charts) -> str:
    names = ", ".join(_text(chart.name) for chart in block.charts)
    return f"There is no picture of them: pip install 'stoker\\[plot\\]'. They are {names}."


@singledispatch
def _written(block: Block) -> str:
    raise TypeError(type(block).__name__)


@_written.register
def _(block: Heading) -> str:
    return f"{'#' * block.level} {_text(block.text)}"


@_written.register
def _(block: Text) -> str:
    return f"**{_text(block.text)}**" if block.warns else _text(block.text)


@_written.register
def _(block: Table) -> str:
    width = len(block.names) or max(map(len, block.rows), default=1)
    names = block.names or [""] * width
    rows = [[_text(cell) for cell in row] for row in block.rows]
    lines = [[_text(name) for name in names], ["---"] * width, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@_written.register
def _(block: Code) -> str:
    longest = max((len(run) for run in re.findall("`+", block.text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"**{_text(block.title)}**\n\n{fence}\n{block.text.rstrip()}\n{fence}"


@_written.register
def _(block: Shares) -> str:
    whole = sum(value for _, value in block.parts) or 1.0
    said = [f"- {_text(name)}: {said_share(value / whole)}" for name, value in block.parts]
    return "\n".join(said)
