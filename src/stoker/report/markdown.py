"""A report as Markdown."""

import re
from collections.abc import Sequence

from stoker.report.document import Block, Charts, Code, Heading, Shares, Table, Text
from stoker.rundir.goodput import format_share

_MARKUP = re.compile(r"([\\`*_\[\]<>|~&$])")


def markdown_text(title: str, blocks: Sequence[Block], picture: str | None = None) -> str:
    """Return the text; ``picture`` is the name of the file that shows the curves."""
    return "\n\n".join([f"# {_text(title)}", *(_draw(block, picture) for block in blocks)]) + "\n"


def _text(text: str) -> str:
    """Return text without markup, in one line."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))


def _draw(block: Block, picture: str | None) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {_text(block.text)}"
        case Text():
            return f"**{_text(block.text)}**" if block.warns else _text(block.text)
        case Table():
            width = len(block.names) or max(map(len, block.rows), default=1)
            lines = [block.names or [""] * width, ["---"] * width, *block.rows]
            return "\n".join(f"| {' | '.join(map(_text, line))} |" for line in lines)
        case Code():
            longest = max((len(run) for run in re.findall("`+", block.text)), default=0)
            fence = "`" * max(3, longest + 1)
            return f"**{_text(block.title)}**\n\n{fence}\n{block.text.rstrip()}\n{fence}"
        case Charts():
            names = ", ".join(_text(chart.name) for chart in block.charts)
            hint = f"To draw the curves, pip install 'stoker\\[plot\\]'. Recorded: {names}."
            return f"![curves]({picture})" if picture is not None else hint
        case Shares():
            total = sum(value for _, value in block.parts) or 1.0
            parts = [(_text(name), format_share(value / total)) for name, value in block.parts]
            return "\n".join(f"- {name}: {share}" for name, share in parts)
