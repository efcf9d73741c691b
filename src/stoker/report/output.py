"""Write a report to a file."""

from collections.abc import Sequence
from pathlib import Path

from stoker.report.charts import save_png
from stoker.report.document import Block, Charts, Facts, document, read_facts
from stoker.report.html import html_page
from stoker.report.markdown import markdown_text
from stoker.storage import atomic_file, local_path, write_atomic
from stoker.storage.mirror import located

FORMATS = ("html", "md", "png")


def write_report(
    runs: Sequence[str | Path], output: str | Path, kind: str = "html", *, quick: bool = False
) -> list[Path]:
    """Write a report on runs, and return the files that were written.

    Args:
        runs: run folders; several are compared.
        output: the file to write.
        kind: "html" is a self-contained page; "md" is Markdown, and a PNG of the curves next to it
            if matplotlib is installed; "png" is only that picture.
        quick: check only the sizes of checkpoint files, not every byte.

    Raises:
        ImportError: "png" needs matplotlib.
    """
    if kind not in FORMATS:
        raise ValueError(f"the format of a report must be one of {FORMATS}, got {kind!r}")
    output = local_path(output, "output")
    found = [read_facts(located(run, "the run"), quick=quick) for run in runs]
    _make_names_unique(found)
    blocks = document(found)
    title = "Report: " + ", ".join(facts.name for facts in found)
    if kind == "html":
        return [_write(output, html_page(title, blocks))]
    charts = next((block for block in blocks if isinstance(block, Charts)), Charts([]))
    if kind == "png":
        return [_draw(charts, output)]
    return _markdown(title, blocks, charts, output)


def _markdown(title: str, blocks: Sequence[Block], charts: Charts, output: Path) -> list[Path]:
    picture: Path | None = output.with_suffix(".png") if charts.charts else None
    if picture is not None:
        try:
            _draw(charts, picture)
        except ImportError:
            picture = None
    text = markdown_text(title, blocks, picture.name if picture is not None else None)
    return [_write(output, text), *([picture] if picture is not None else [])]


def _draw(charts: Charts, path: Path) -> Path:
    with atomic_file(path) as temporary:
        save_png(charts, temporary)
    return path


def _write(path: Path, text: str) -> Path:
    write_atomic(path, text.encode("utf-8", errors="replace"))
    return path


def _make_names_unique(found: Sequence[Facts]) -> None:
    """Name runs that share a name by their paths."""
    names = [facts.name for facts in found]
    for facts in found:
        if names.count(facts.name) > 1:
            facts.name = str(facts.path)
