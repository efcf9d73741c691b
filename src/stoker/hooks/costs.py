"""`Costs`: what a `CostReport` found, as numbers, tables and a trace."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stoker.counts import Counts
from stoker.hooks.cost_meter import PHASES, Row, Slice

VERSION = 1


@dataclass(frozen=True)
class Costs:
    """Times and counts of some steps.

    Attributes:
        rows: what each hook, metric and writer did at each point.
        phases: seconds of all timed steps together, by what they were spent on.
        steps: the seconds of each timed step.
        counted: how many steps were counted.
        rest: what the steps asked of torch outside hooks, backward pass and update.
        warmup: how many steps came before.
        processes: how many processes trained.
        compiled: whether model and criterion were compiled; then only hooks are counted.
    """

    rows: list[Row]
    phases: dict[str, float]
    steps: list[float]
    counted: int
    rest: Counts
    warmup: int
    processes: int
    compiled: bool

    @property
    def step_seconds(self) -> float:
        """What a step takes, as a mean."""
        return sum(self.phases.values()) / len(self.steps)

    @property
    def shares(self) -> dict[str, float]:
        """The part of a step that each phase takes."""
        whole = sum(self.phases.values())
        return {name: seconds / whole for name, seconds in self.phases.items()}

    def counts_of(self, phase: str) -> Counts | None:
        """What a phase asks of torch in all counted steps, None where that is not known."""
        if phase in ("data", "other") or not self.counted:
            return None
        if self.compiled and phase not in ("hooks", "writers"):
            return None
        found = Counts()
        rows = [row for row in self.rows if row.phase == phase and row.in_step and not row.part]
        own = [row.counts for row in rows]
        for counts in [*own, *([self.rest] if phase == "forward" else [])]:
            found.operations += counts.operations
            found.syncs += counts.syncs
            found.collectives += counts.collectives
        return found

    def as_json(self) -> dict[str, Any]:
        """Everything, in plain values: seconds and counts in all, to be divided by the calls."""
        ordered = sorted(self.steps)
        return {
            "version": VERSION,
            "steps": len(self.steps),
            "counted": self.counted,
            "warmup": self.warmup,
            "processes": self.processes,
            "compiled": self.compiled,
            "step_seconds": {"mean": self.step_seconds, "median": ordered[len(ordered) // 2]},
            "phases": {
                name: {
                    "seconds": self.phases[name] / len(self.steps),
                    "share": self.shares[name],
                    **_per_step(self.counts_of(name), self.counted),
                }
                for name in PHASES
            },
            "rows": [
                {
                    "hook": row.hook,
                    "part": row.part,
                    "point": row.point,
                    "calls": row.timer.count,
                    "seconds": row.timer.total,
                    "counted_calls": row.counted,
                    **asdict(row.counts),
                }
                for row in self.rows
                if row.hook
            ],
        }


def _per_step(counts: Counts | None, steps: int) -> dict[str, float]:
    if counts is None:
        return {}
    return {name: value / steps for name, value in asdict(counts).items()}


def phase_table(costs: Costs) -> list[list[str]]:
    """What a step is made of, the head of the table first."""
    table = [["a step", "µs", "share", "operations", "syncs", "collectives"]]
    for name in PHASES:
        seconds, counts = costs.phases[name] / len(costs.steps), costs.counts_of(name)
        numbers = ["", "", ""] if counts is None else _means(counts, costs.counted)
        table.append([name, f"{seconds * 1e6:,.0f}", f"{costs.shares[name]:.1%}", *numbers])
    table.append(["all of it", f"{costs.step_seconds * 1e6:,.0f}", "", "", "", ""])
    return table


def hook_table(costs: Costs) -> list[list[str]]:
    """What hooks, metrics and writers cost in each call, the dearest first."""
    table = [["hook", "point", "calls", "µs/call", "operations", "syncs", "collectives"]]
    rows = [row for row in costs.rows if row.hook and (row.in_step or _is_seen(row))]
    totals: dict[str, float] = {}
    for row in rows:
        totals[row.hook] = totals.get(row.hook, 0.0) + (0.0 if row.part else row.timer.total)
    for row in sorted(rows, key=lambda row: (-totals[row.hook], row.hook, row.part)):
        numbers = _means(row.counts, row.counted) if row.counted else ["", "", ""]
        name = f"  {row.part}" if row.part else row.hook
        calls = row.timer.count
        microseconds = f"{row.timer.mean * 1e6:,.1f}" if calls else ""
        table.append([name, row.point, str(calls), microseconds, *numbers])
    return table


def _is_seen(row: Row) -> bool:
    return bool(row.timer.count or any(asdict(row.counts).values()))


def _means(counts: Counts, over: int) -> list[str]:
    numbers = (counts.operations, counts.syncs, counts.collectives)
    return [f"{number / over:.3g}" if number else "0" for number in numbers]


def aligned(table: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """A table as plain text; all columns but the first ``words`` are numbers."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = []
    for row in table:
        cells = [
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def chrome_trace(slices: Iterable[Slice]) -> dict[str, Any]:
    """Stretches of time as chrome://tracing and Perfetto read them."""
    ordered = sorted(slices, key=lambda one: (one.began, -one.ended))
    start = ordered[0].began if ordered else 0.0
    process = os.getpid()
    named = {"name": "thread_name", "ph": "M", "args": {"name": "training loop"}}
    events = [
        {
            "name": one.name,
            "cat": one.phase,
            "ph": "X",
            "ts": (one.began - start) * 1e6,
            "dur": (one.ended - one.began) * 1e6,
            "pid": process,
            "tid": 0,
        }
        for one in ordered
    ]
    return {"traceEvents": [{**named, "pid": process, "tid": 0}, *events], "displayTimeUnit": "ms"}


def write_json(path: Path, value: Any) -> None:
    """Write a whole file, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".partial")
    aside.write_text(json.dumps(value) + "\n", encoding="utf-8")
    aside.replace(path)
