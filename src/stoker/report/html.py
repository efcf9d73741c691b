"""A report as one web page that loads nothing else."""

from collections.abc import Sequence
from html import escape

from stoker.report.charts import COLORS, chart_svg, shares_svg
from stoker.report.document import Block, Charts, Code, Heading, Shares, Table, Text

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line) }
h1, h2, h3, p, li, th, td:first-child { overflow-wrap: anywhere }
td { overflow-wrap: break-word } /* unlike anywhere, it keeps a column as wide as its words */
table { border-collapse: collapse; width: 100%; font-size: 14px }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top }
th { font-weight: 600 } .names th { overflow-wrap: normal }
.scroll { overflow-x: auto }
.charts { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(320px, 100%), 1fr)) }
figure { margin: 0; border: 1px solid var(--line); border-radius: 6px; padding: .5rem }
figcaption { font-weight: 600; overflow-wrap: anywhere }
svg { width: 100%; height: auto; display: block } svg.bar { height: 28px; border-radius: 4px }
svg text { font: 11px system-ui, sans-serif; fill: currentColor; opacity: .75 }
.grid { stroke: currentColor; opacity: .15 } .curve { fill: none; stroke-width: 1.6 }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: 13px; margin: .3rem 0 }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: 2px;
  margin-right: .4em }
.warns { border-left: 4px solid #c43d4b; padding-left: .6rem }
pre { overflow-x: auto; background: var(--soft); padding: .8rem; border-radius: 6px;
  font-size: 13px }
details { margin: .8rem 0 } summary { cursor: pointer; font-weight: 600 }
@media (max-width: 640px) {
  body { margin: 1rem auto; padding: 0 .7rem } h1 { font-size: 1.3rem }
  table.named, .named tbody, .named tr, .named td { display: block }
  .named tr.names { display: none }
  .named tr { border-bottom: 1px solid var(--line); padding: .4rem 0 }
  .named td { border: 0; padding: .1rem 0; display: grid; grid-template-columns: 9.5em 1fr;
    gap: .6rem; min-width: 0; overflow-wrap: anywhere }
  .named td::before { content: attr(data-name); opacity: .7; overflow-wrap: anywhere }
  .named td:first-child { font-weight: 600; display: block }
  .named td:first-child::before { content: none } .named td:empty { display: none }
  table:not(.named) :is(tr, th, td) { display: block; padding: .1rem 0; border: 0 }
  table:not(.named) tr { border-bottom: 1px solid var(--line); padding: .3rem 0 }
}
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def html_page(title: str, blocks: Sequence[Block]) -> str:
    """Return the page; the contents of blocks are text in it, never markup."""
    body = "\n".join(_draw(block) for block in blocks)
    return _PAGE.format(title=_text(title), style=_STYLE, body=body)


def _text(text: str) -> str:
    """Return text without markup and control characters."""
    clean = "".join(char if char >= " " or char in "\n\t" else "\ufffd" for char in text)
    return escape(clean)


def _draw(block: Block) -> str:
    match block:
        case Heading():
            return f"<h{block.level}>{_text(block.text)}</h{block.level}>"
        case Text():
            kind = ' class="warns"' if block.warns else ""
            return f"<p{kind}>{_text(block.text)}</p>"
        case Table():
            return _table(block)
        case Code():
            title, text = _text(block.title), _text(block.text)
            return f"<details><summary>{title}</summary><pre>{text}</pre></details>"
        case Charts():
            return _charts(block)
        case Shares():
            return shares_svg(block)


def _table(block: Table) -> str:
    if not block.names:
        rows = [f"<th>{_text(first)}</th>{_cells(others)}" for first, *others in block.rows]
        return _scrolling("", [f"<tr>{row}</tr>\n" for row in rows])
    heads = "".join(f"<th>{_text(name)}</th>" for name in block.names)
    body = [f"<tr>{_cells(row, block.names)}</tr>\n" for row in block.rows]
    return _scrolling(' class="named"', [f'<tr class="names">{heads}</tr>\n', *body])


def _cells(row: Sequence[str], names: Sequence[str] = ()) -> str:
    """Return the cells of a row; a narrow screen shows the name of its column in each."""
    labels = [f' data-name="{_text(name)}"' for name in names] or [""] * len(row)
    return "".join(
        f"<td{label}>{_text(cell)}</td>" for label, cell in zip(labels, row, strict=True)
    )


def _scrolling(kind: str, rows: Sequence[str]) -> str:
    return f'<div class="scroll"><table{kind}>\n{"".join(rows)}</table></div>'


def _charts(block: Charts) -> str:
    figures = []
    for chart in block.charts:
        picture = chart_svg(chart) or "<p>no finite values</p>"
        figures.append(f"<figure><figcaption>{_text(chart.name)}</figcaption>{picture}</figure>")
    colors = {line.run: line.color for chart in block.charts for line in chart.lines}
    legend = "".join(
        f'<span><i style="background:{COLORS[color % len(COLORS)]}"></i>{_text(run)}</span>'
        for run, color in sorted(colors.items(), key=lambda one: one[1])
    )
    return f'<p class="legend">{legend}</p><div class="charts">{"".join(figures)}</div>'
