"""Writing a report to a file."""

from collections.abc import Sequence
from pathlib import Path

from stoker.report.blocks import Block, Charts
from stoker.report.document import document
from stoker.report.facts import Facts, facts_of
from stoker.report.html import page
from stoker.report.markdown import text_of
from stoker.report.png import save_picture
from stoker.storage import atomic_file, local_path, write_atomic

FORMATS = ("html", "md", "png")


def write_report(
    runs: Sequence[str | Path], output: str | Path, kind: str = "html", *, quick: bool = False
) -> list[Path]:
    """Write a report about runs, and return the files that were written.

    Args:
        runs: run folders; several are compared.
        output: the file.
        kind: "html" is one page that needs nothing else; "md" is Markdown, with a picture of the
            curves beside it where matplotlib is installed; "png" is that picture.
        quick: look at the sizes of checkpoint files, and not at every byte.

    Raises:
        ImportError: "png" needs matplotlib.
    """
    if kind not in FORMATS:
        raise ValueError(f"a report is one of {FORMATS}, got {kind!r}")
    output = local_path(output, "output")
    found = [facts_of(local_path(run, "the run"), quick=quick) for run in runs]
    _tell_apart(found)
    blocks = document(found)
    title = "Report: " + ", ".join(facts.name for facts in found)
    if kind == "html":
        return [_put(output, page(title, blocks))]
    charts = next((block for block in blocks if isinstance(block, Charts)), Charts([]))
    if kind == "png":
        return [_drawn(charts, output)]
    return _markdown(title, blocks, charts, output)


def _markdown(title: str, blocks: Sequence[Block], charts: Charts, output: Path) -> list[Path]:
    picture = output.with_suffix(".png")
    try:
        written = [_drawn(charts, picture)] if charts.charts else []
    except ImportError:
        written = []
    return [_put(output, text_of(title, blocks, picture.name if written else None)), *written]


def _drawn(charts: Charts, path: Path) -> Path:
    try:
        with atomic_file(path) as temporary:
            save_picture(charts, temporary)
    except ImportError as error:
        raise ImportError("a picture needs matplotlib: pip install 'stoker[plot]'") from error
    return path


def _put(path: Path, text: str) -> Path:
    write_atomic(path, text.encode("utf-8", errors="replace"))
    return path


def _tell_apart(found: Sequence[Facts]) -> None:
    """Runs of one name are called by their whole paths."""
    names = [facts.name for facts in found]
    for facts in found:
        if names.count(facts.name) > 1:
            facts.name = str(facts.path)
