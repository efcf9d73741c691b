"""The page docs/benchmarks/steps.md, and the tables of other pages."""

import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from envs import Peer
from scenarios import Answer, Answers, Scenario, goal_of, of, times

sys.path.insert(1, str(Path(__file__).parent.parent))
import publish

PLAIN, AGAIN = "plain PyTorch", "plain PyTorch again"

INTRO = """\
# The cost of a step, compared with ten trainers

After this page you know what a step, a save, a start and a complete job cost with Stoker, with the
plain loop, and with ten other trainers: the same model, data, seed and settings, in interleaved
rounds. Compare every number with that of the plain loop in the same table; the plain loop again, in
another process, shows the noise. Differences in the trained weights are reported too.

{command}

## How to read the tables

- The model is an MLP of 8-16-4 with SGD and batches of 8, so small that the cost of the loop shows;
  with a larger model, all ratios approach 1.
- Each peer runs in its own process, on one core and one thread. The model records the time of each
  call: a step is the time between two calls, without the first tenth (at most 100).
- "Setup" is the time of the call outside its steps: creating the trainer, starting, ending.
- "–" means that the peer has no such feature; the reason is below the table.
- Numbers are medians of the rounds. "× plain" is the median of the ratios within each round,
  because the speed of the machine varies between rounds. Rows are sorted by it, fastest first.
"""

PICTURE = "![Ratios to the plain loop](../images/bench-steps.png)\n"

SUMMARY = """\
Each column is a table below: the ratio to the plain loop (of a step, a start, a save or a job); for
(g2) whether the run ends at the same bits, for (h) megabytes per 200,000 steps.
"""

ENVIRONMENTS = """\
Each peer has its own virtual environment, below one folder (`--envs`). All of them share torch and
scikit-learn from one more environment (through a `.pth` file), so that versions are the same.
"""


def write(found: dict[str, Any], scenarios: list[Scenario], peers: list[Peer]) -> str:
    """Return the complete page in Markdown."""
    parts = [INTRO.format(command=_command(found)), PICTURE, *_setting(found, peers)]
    if found["interrupted"]:
        parts.append("**This run was interrupted: the tables show the results until then.**\n")
    shown = [s for s in scenarios if s.page == "steps" and s.key in found["answers"]]
    tables = [_fill(s, found) for s in shown]
    if len(tables) > 1:
        parts += _summary(tables, peers)
    for table in tables:
        parts += _section(table)
    return "\n".join(parts)


@dataclass
class Table:
    """A scenario with its results: the cells of each peer, or why it has none."""

    scenario: Scenario
    cells: dict[str, list[str]]
    notes: dict[str, str]


def _fill(scenario: Scenario, found: dict[str, Any]) -> Table:
    answers: Answers = found["answers"][scenario.key]
    table = Table(scenario, {}, {})
    plain = _good(answers.get("plain PyTorch", []))
    for name in sorted(answers, key=lambda name: _place(scenario, _good(answers[name]), plain)):
        good = _good(answers[name])
        if good and plain:
            table.cells[name] = scenario.row(good, plain)
        else:
            last = answers[name][-1]
            reason = last.get("absent") or last.get("error") or "no plain loop to compare"
            table.notes[name] = _plain(reason)
    table.notes |= dict.fromkeys(found["unavailable"], "cannot run here")
    return table


def _summary(tables: list[Table], peers: list[Peer]) -> Iterator[str]:
    yield "## Summary\n"
    yield SUMMARY
    yield "| | " + " | ".join(f"({table.scenario.key})" for table in tables) + " |"
    yield "|---" + "|---:" * len(tables) + "|"
    names = [peer.name for peer in peers]
    known = {name for table in tables for name in table.cells}
    more = sorted(known.difference(names), reverse=True)  # the plain loop again, Stoker's command
    for name in [*names[:1], *more, *names[1:]]:
        yield _row(name, [_summary_cell(table, name) for table in tables])
    yield ""


def _summary_cell(table: Table, name: str) -> str:
    if name not in table.cells:
        return "–"
    columns = table.scenario.columns
    chosen = next((c for c in ("× plain", "per 200,000") if c in columns), columns[0])
    return table.cells[name][columns.index(chosen)].split(",")[0]


def _row(name: str, cells: list[str]) -> str:
    return f"| {f'**{name}**' if 'stoker' in name.lower() else name} | " + " | ".join(cells) + " |"


def _command(found: dict[str, Any]) -> str:
    return f"```console\n{found['command']}\n```"


def _setting(found: dict[str, Any], peers: list[Peer]) -> Iterator[str]:
    yield "## Machine and versions\n"
    yield f"{found['machine']}; Python {platform.python_version()}. {_amounts(found)}\n"
    yield ENVIRONMENTS if found["environments"] else "All run in one environment.\n"
    yield "| peer | version |\n|---|---|"
    for peer in peers:
        if peer.name in found["unavailable"]:
            yield f"| {peer.name} | cannot run here: {_plain(found['unavailable'][peer.name])} |"
        else:
            yield f"| {peer.name} | {found['versions'].get(peer.name, '')} |"
    yield ""


def _amounts(found: dict[str, Any]) -> str:
    done = found["rounds_done"]
    return (
        f"Rounds of {found['steps']} steps: {done['steps']}; of fresh processes: {done['fresh']}; "
        f"steps of (h): {found['memory_steps']:,}; total minutes: {found['minutes']:.0f}. Load of "
        f"the machine at the start: {found['load']:.1f}; if that is not near 0, read times as "
        "rough sizes."
    )


def _section(table: Table) -> Iterator[str]:
    scenario = table.scenario
    yield f"## ({scenario.key}) {scenario.title}\n"
    yield f"{scenario.text}\n"
    yield "| | " + " | ".join(scenario.columns) + " |"
    yield "|---" + "|---:" * len(scenario.columns) + "|"
    for name, cells in table.cells.items():
        yield _row(name, cells)
    for name in table.notes:
        yield _row(name, ["–"] * len(scenario.columns))
    yield ""
    if table.notes:
        yield "; ".join(f"{name}: {why}" for name, why in table.notes.items()) + ".\n"


def _good(answers: list[Answer]) -> list[Answer]:
    return [one for one in answers if "error" not in one and "absent" not in one]


def _place(scenario: Scenario, good: list[Answer], plain: list[Answer]) -> float:
    if good and plain and "× plain" in scenario.columns:
        return times(scenario.order, good, plain)
    return median(of(scenario.order, good)) if good else float("inf")


def _plain(reason: str) -> str:
    """Return its first sentence, without colours, paths and characters that break a table."""
    reason = re.sub("\x1b\\[[0-9;]*m", "", reason).split(". ")[0]
    tokens = [Path(token).name if token.startswith("/") else token for token in reason.split()]
    return " ".join(tokens).replace("|", "/").rstrip(".")[:200]


# Tables of other pages


def other_tables(found: dict[str, Any], scenarios: list[Scenario]) -> dict[str, list[Any]]:
    """Return the tables that belong to other pages, by page."""
    tables: dict[str, list[Any]] = {}
    for scenario in scenarios:
        if scenario.page != "steps" and scenario.key in found["answers"]:
            tables.setdefault(scenario.page, []).append(_published(scenario, found))
    return tables


def _published(scenario: Scenario, found: dict[str, Any]) -> publish.Table:
    table = _fill(scenario, found)
    answers = found["answers"][scenario.key]
    rows = [[name, *cells] for name, cells in table.cells.items()]
    rows += [[name, *("–" for _ in scenario.columns)] for name in table.notes]
    plain = _good(answers.get(PLAIN, []))
    ratios = {name: times(scenario.order, _good(answers[name]), plain) for name in table.cells}
    again = _good(answers.get(AGAIN, []))
    pairs = zip(of(scenario.order, again), of(scenario.order, plain), strict=False)
    apart = [mine / theirs for mine, theirs in pairs]
    noise = median(abs(one - 1) for one in apart) if apart else 0.0
    text = scenario.text
    if plain and "losses" in plain[0]:
        text += f" The validation loss to reach is {goal_of(plain):.4g}."
    if table.notes:
        text += " Without figures: "
        text += "; ".join(f"{name}: {why}" for name, why in table.notes.items()) + "."
    told = [f"{one:.3f}" for one in sorted(apart)]
    return publish.Table(
        scenario.title,
        text,
        [*scenario.columns],
        rows,
        f"the plain loop compared with itself, in {len(apart)} rounds: {', '.join(told)} ×",
        ratios,
        "× the plain loop",
        1.0,
        [*_findings(scenario, ratios, noise)],
        command=found["command"],
    )


def _findings(
    scenario: Scenario, ratios: dict[str, float], noise: float
) -> Iterator[publish.Finding]:
    if "Stoker" not in ratios:
        return
    mine = ratios["Stoker"]
    others = [one for name, one in ratios.items() if name not in (PLAIN, AGAIN, "Stoker")]
    text = f"{mine:.2f} × (noise {noise:.2f})"
    if others:
        text += f", others {min(others):.2f} to {max(others):.2f} ×"
    first = not others or mine <= min(others)
    limit = 0.6 if scenario.page == "failure" else 1.0
    target = f"≤ {limit:.2f} ×, first"
    yield publish.Finding(scenario.title, text, target, mine <= limit + noise and first)


def steps_record(found: dict[str, Any], scenarios: list[Scenario]) -> list[publish.Table]:
    """Return what the summary and the picture show of the page of steps."""
    tables = []
    for scenario in scenarios:
        if scenario.key not in ("a", "c", "g1") or scenario.key not in found["answers"]:
            continue
        table = _fill(scenario, found)
        place = scenario.columns.index("× plain")
        ratios = {name: float(cells[place]) for name, cells in table.cells.items()}
        tables.append(record_of(scenario.key, scenario.title, ratios))
    return tables


def record_of(key: str, title: str, ratios: dict[str, float]) -> publish.Table:
    """Return a table without rows, for the picture and the summary."""
    others = [one for name, one in ratios.items() if name not in (PLAIN, AGAIN, "Stoker")]
    text = f"{ratios['Stoker']:.2f} ×, others {min(others):.2f} to {max(others):.2f} ×"
    question = {
        "a": "A step of a tiny model, everything off",
        "c": "… with default settings",
        "g1": "How long a save of 51 MB blocks",
    }[key]
    best = ratios["Stoker"] <= min(others)
    finding = publish.Finding(question, text, "first", best)
    bars = {name: ratios[name] for name in sorted(ratios, key=lambda name: ratios[name])}
    unit = "× the plain loop"
    return publish.Table(title, "", [], [], "", bars, unit, 1.0, [finding])
