"""The pages in docs/benchmarks: scripts store their tables here, and the pages follow from them.

    python benchmarks/publish.py        write all pages and pictures again, without measuring

A script measures some tables of a page and calls `store`. They replace those of the same title in
benchmarks/results, so a page can be measured in several short runs. Every page has a picture; the
first page is a summary of all findings.
"""

import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
SUMMARY = """\
# Benchmarks

After this page you know what Stoker costs compared with a loop written by hand and with other
trainers, and where it misses its own targets. Every row links to its page, which has the tables, a
picture, the machine, the noise and the command. Streams have
[a page of their own](../streams.md#how-fast).

| question | found | target | |
|---|---|---|---|
{rows}

Ratios compare interleaved runs, so that a machine that is slow for a while slows both. "×" is
relative to the loop by hand unless a row says otherwise; below 1 is faster. `make help` lists the
commands as `make bench-…`.
"""


@dataclass
class Finding:
    """A row of the summary; ``met`` is None where there is no target."""

    question: str
    found: str
    target: str = ""
    met: bool | None = None


@dataclass
class Table:
    """One table with what was measured, and how it is drawn.

    ``bars`` are the values of the picture by name, or ``lines`` those by name and size; ``target``
    is a line in it.
    """

    title: str
    text: str
    columns: list[str]
    rows: list[list[str]]
    noise: str
    bars: dict[str, float] = field(default_factory=dict)
    unit: str = ""
    target: float | None = None
    findings: list[Finding] = field(default_factory=list)
    command: str = ""
    setting: str = ""
    lines: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """The text of a page; ``tables`` are the titles that come first, ``target`` is that of make."""

    name: str
    title: str
    intro: str
    target: str
    tables: tuple[str, ...] = ()


PAGES = {
    page.name: page
    for page in (
        Page(
            "realistic-work",
            "Realistic work",
            "After this page you know what Stoker costs when the model does real work: four jobs "
            "with a plain loop written well (fused or foreach optimizers, no needless "
            "synchronization), with Stoker's defaults and a run folder, and with other trainers "
            "and their defaults.\n\nEach run is a new process with one thread; rounds are "
            "interleaved. Seconds are those from the first call of the model to the end, with "
            "validation after each epoch, divided by the epochs. Seconds to the loss are those "
            "until the end of the first epoch after which the validation loss is that of the plain "
            "loop before its last epoch (or 0.2 % more); it is computed outside the measured time. "
            "CPU time is that of the process with its imports and workers, peak memory that "
            "without workers. Rows are sorted by the ratio to the plain loop.",
            "bench-realistic",
            ("Augmented images", "A transformer", "Fine-tuning", "A table of a million rows"),
        ),
        Page("steps", "The cost of a step, compared with ten trainers", "", "bench-peers"),
        Page(
            "failure",
            "Failure",
            "After this page you know how long a training on two processes stands still when one "
            "of them is killed, and which part of the time is useful if that happens every minute.",
            "bench-failure",
        ),
        Page(
            "checkpoints",
            "Large checkpoints",
            "After this page you know how long a save of some gigabytes stops the training, how "
            "the time of saves and loads compares with what the disk itself needs, and how soon "
            "training continues from such a checkpoint, with Stoker and with others.",
            "bench-checkpoints",
            ("Saves, 1 process", "Saves, 2 processes", "Loads, 1 process", "Loads, 2 processes"),
        ),
        Page(
            "growth",
            "Growth",
            "After this page you know how costs grow with the amount of work: epochs, lines, "
            "hooks, metrics, parameters, validation loaders, rows, history, checkpoints, nodes of "
            "a config. A slope of 0 is a cost that stays the same per unit, 1 one that is "
            "proportional to the size.",
            "bench-growth",
            ("Epochs", "Logging", "Hooks", "Metrics", "Parameters", "Loaders", "Dataset"),
        ),
        Page(
            "logging",
            "Logging every step",
            "After this page you know what a line of JSON for every step costs: with Stoker's "
            "`Write` hook and `JsonLines`, and with a loop by hand that writes the same line.",
            "bench-logging",
        ),
        Page(
            "start",
            "Start",
            "After this page you know how long it takes until a command answers and until a "
            "training makes its first step: from the command line, after a kill, and on several "
            "processes.",
            "bench-start",
            ("Help", "First step", "Restart", "Launchers"),
        ),
        Page(
            "safety",
            "The cost of safety",
            "After this page you know what it costs that a run knows who it is (identity), saves "
            "the state of your own code (hidden state), ends if it hangs (heartbeat) and has its "
            "folder to itself (lease). All of them are on by default (the heartbeat with several "
            "processes), and `stoker profile` prints them for your own config.",
            "bench-safety",
        ),
    )
}
"""The pages in their order."""


def finish(name: str, tables: list[Table], *, write: bool) -> None:
    """Print the tables; with ``write``, keep them and write the pages."""
    for table in tables:
        print("\n".join([f"\n## {table.title}\n", *grid(table.columns, table.rows), table.noise]))
    if write:
        store(name, tables)


def store(name: str, tables: list[Table], command: str = "") -> None:
    """Keep the tables, replace those of the same title, and write the pages."""
    path, ours = RESULTS / f"{name}.json", {table.title for table in tables}
    kept = [table for table in stored(name) if table["title"] not in ours]
    for table in tables:
        table.command = table.command or command or this_command()
        table.setting = table.setting or setting()
        kept.append(asdict(table))
    first = PAGES[name].tables
    titles = [*first, *(table["title"] for table in kept if table["title"] not in first)]
    kept.sort(key=lambda table: titles.index(table["title"]))
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    write_pages()


def stored(name: str) -> list[dict[str, Any]]:
    """Return the tables of a page."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else []


def this_command() -> str:
    script, *given = sys.argv
    path = Path(script).resolve()
    path = path.parent if path.name == "__main__.py" else path
    return shlex.join(["python", str(path.relative_to(ROOT)), *given])


def machine() -> str:
    """Describe the machine: its cores and their model."""
    kind = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        kind = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{os.cpu_count()} cores, {kind}, {platform.system()}"


LOAD = os.getloadavg()[0]


def setting() -> str:
    day = datetime.now(UTC).strftime("%d %B %Y")
    return f"{day}; {machine()}; load at the start {LOAD:.1f}"


# Writing


def write_pages() -> None:
    """Write the summary, and all pages and pictures; benchmarks/peers writes the page of steps."""
    (DOCS / "benchmarks").mkdir(exist_ok=True)
    for name, page in PAGES.items():
        if page.intro:
            (DOCS / "benchmarks" / f"{name}.md").write_text(text_of(page))
        draw(name, stored(name))
    (DOCS / "benchmarks" / "index.md").write_text(summary())


def summary() -> str:
    rows = [row for name in PAGES for row in findings(name)]
    return SUMMARY.format(rows="\n".join(rows))


def findings(name: str) -> Iterator[str]:
    for table in stored(name):
        for one in table["findings"]:
            mark = {True: "met", False: "**missed**", None: ""}[one["met"]]
            yield f"| [{one['question']}]({name}.md) | {one['found']} | {one['target']} | {mark} |"


def text_of(page: Page) -> str:
    return "\n".join(_lines(page)) + "\n"


def _lines(page: Page) -> Iterator[str]:
    yield f"# {page.title}\n"
    yield f"{page.intro}\n"
    tables = stored(page.name)
    if not tables:
        yield f"Nothing has been measured yet: run `make {page.target}`."
    if any(table["bars"] or table["lines"] for table in tables):
        yield f"![{page.title}](../images/bench-{page.name}.png)\n"
    for table in tables:
        yield f"## {table['title']}\n"
        yield f"{table['text']}\n"
        yield f"```console\n{table['command']}\n```\n"
        yield from grid(table["columns"], table["rows"])
        yield f"Noise: {table['noise']}. {table['setting']}.\n"


def grid(columns: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield "| | " + " | ".join(columns) + " |"
    yield "|---" + "|---:" * len(columns) + "|"
    for first, *cells in rows:
        name = f"**{first}**" if "stoker" in first.lower() else first
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield ""


def draw(name: str, found: list[dict[str, Any]]) -> None:
    """Draw a panel for each table that has something to draw."""
    tables = [table for table in found if table["bars"] or table["lines"]]
    if not tables:
        return
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    wide = min(len(tables), 4)
    high = -(-len(tables) // wide)
    most = max(max(len(table["bars"]), 7 * bool(table["lines"])) for table in tables)
    size = (4.2 * wide, high * (1.3 + 0.24 * most))
    figure, axes = pyplot.subplots(high, wide, figsize=size, squeeze=False)
    for axis in axes.flat[len(tables) :]:
        axis.set_visible(False)
    for axis, table in zip(axes.flat, tables, strict=False):
        panel = draw_lines if table["lines"] else draw_bars
        panel(axis, table)
        axis.set_title(table["title"], fontsize=9)
        axis.tick_params(labelsize=7)
    figure.tight_layout()
    metadata = {"Software": None}  # the same bytes for the same values
    figure.savefig(DOCS / "images" / f"bench-{name}.png", dpi=90, metadata=metadata)
    pyplot.close(figure)


def colour(name: str) -> str:
    return "#d4612a" if "stoker" in name.lower() else "#8a94a0"


def draw_bars(axis: Any, table: dict[str, Any]) -> None:
    names = [*table["bars"]][::-1]
    values = [table["bars"][name] for name in names]
    bars = axis.barh(names, values, color=[colour(name) for name in names])
    axis.bar_label(bars, fmt="%.3g", padding=2, fontsize=7)
    axis.margins(x=0.18)
    if table["target"] is not None:
        axis.axvline(table["target"], color="black", linestyle=":", linewidth=1)
    axis.set_xlabel(table["unit"], fontsize=8)


def draw_lines(axis: Any, table: dict[str, Any]) -> None:
    for name, points in table["lines"].items():
        sizes = [int(size) for size in points]
        ours = {"color": "#d4612a"} if name == [*table["lines"]][-1] else {"color": "#8a94a0"}
        axis.loglog(sizes, [*points.values()], marker="o", markersize=3, label=name, **ours)
    axis.legend(fontsize=7)
    axis.set_ylabel(table["unit"], fontsize=8)


if __name__ == "__main__":
    write_pages()
