"""The contents of a report, as blocks."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime

import numpy as np

from stoker.events.writers.console import format_number
from stoker.hooks.base.monitor import Monitor
from stoker.report.blocks import Block, Chart, Charts, Code, Heading, Line, Shares, Table, Text
from stoker.report.card import model_card
from stoker.report.facts import Facts
from stoker.report.goodput import Goodput, format_seconds, format_share
from stoker.rundir import files
from stoker.rundir.attempts import KINDS, Attempt
from stoker.rundir.config_tree import differences, format_value
from stoker.rundir.reader import Curve
from stoker.storage import format_size

_MOST_CHARTS = 60
_FIRST = ("train/", "val/", "lr", "grad_norm")


def document(runs: Sequence[Facts]) -> list[Block]:
    """Return the blocks of a report: all runs together, then each of them."""
    blocks: list[Block] = [Heading("Overview"), _overview(runs), *_curves(runs)]
    if len(runs) > 1:
        blocks += _differences(runs)
    for facts in runs:
        blocks += _one(facts)
    return blocks


def _overview(runs: Sequence[Facts]) -> Table:
    names = ("run", "state", "step", "epoch", "samples", "time", "goodput", "checkpoints")
    return Table([_summary(facts) for facts in runs], names)


def _summary(facts: Facts) -> list[str]:
    found, last = facts.goodput, facts.last
    valid = sum(not one.faults for one in facts.checkpoints)
    broken = len(facts.checkpoints) - valid
    counters = [f"{last[key]:,.0f}" if key in last else "" for key in ("step", "epoch", "samples")]
    return [
        facts.name,
        facts.state + (", broken files" if facts.faults else ""),
        *counters,
        format_seconds(found.total) if found else "",
        format_share(found.share) if found else "",
        f"{valid} valid" + (f", {broken} broken" if broken else ""),
    ]


def _curves(runs: Sequence[Facts]) -> Iterator[Block]:
    names = list(dict.fromkeys(name for facts in runs for name in facts.curves))
    names.sort(key=lambda name: [not name.startswith(first) for first in _FIRST])
    charts = []
    for name in names[:_MOST_CHARTS]:
        having = [(i, facts) for i, facts in enumerate(runs) if name in facts.curves]
        lines = [Line(facts.name, i, facts.curves[name]) for i, facts in having]
        charts.append(Chart(name, lines))
    if charts:
        yield Heading("Curves")
        yield Text("The x axis is the step.")
        yield Charts(charts)
    if len(names) > _MOST_CHARTS:
        yield Text(f"{len(names) - _MOST_CHARTS} more curves are left out.")


def _differences(runs: Sequence[Facts]) -> Iterator[Block]:
    rows = [
        [key, *map(format_value, values)]
        for key, values in differences([facts.settings for facts in runs])
    ]
    yield Heading("Configuration differences")
    if rows:
        yield Table(rows, ("", *(facts.name for facts in runs)))
    else:
        yield Text(f"None: their {files.CONFIG} files are the same.")


def _one(facts: Facts) -> Iterator[Block]:
    yield Heading(facts.name)
    for fault in facts.faults:
        yield Text(fault, warns=True)
    yield Heading("Model card", 3)
    yield Table(model_card(facts))
    if results := _results(facts):
        yield Heading("Results", 3)
        yield Table(results, ("result", "last", "at step", "best", "at step"))
    if facts.goodput is not None:
        yield from _goodput(facts.goodput)
    if facts.checkpoints:
        yield Heading("Checkpoints", 3)
        yield _checkpoints(facts)
    yield from _appendix(facts)


def _results(facts: Facts) -> list[list[str]]:
    rows = []
    for name, curve in facts.curves.items():
        if not name.startswith(("val/", "train/")):
            continue
        best = _best(name, curve)
        shown = ["", ""]
        if best is not None:
            shown = [format_number(name, float(curve.values[best])), str(curve.steps[best])]
        last = format_number(name, float(curve.values[-1]))
        rows.append([name, last, str(curve.steps[-1]), *shown])
    return rows


def _best(name: str, curve: Curve) -> int | None:
    try:
        sign = 1 if Monitor(name).mode == "min" else -1
    except ValueError:  # whether lower or higher is better is unknown
        return None
    finite = np.isfinite(curve.values)
    worst_if_not = np.where(finite, sign * curve.values, np.inf)
    return int(np.argmin(worst_if_not)) if finite.any() else None


def _goodput(found: Goodput) -> Iterator[Block]:
    yield Heading("Goodput", 3)
    repeated = f" {found.repeated_steps} steps were repeated." if found.repeated_steps else ""
    yield Text(
        f"{format_share(found.share)} of {format_seconds(found.total)} over all attempts was "
        f"useful training.{repeated}"
    )
    parts = [(KINDS[kind], seconds) for kind, seconds in found.seconds.items() if seconds]
    yield Shares(parts)
    names = ("attempt", "started", "steps", "time", "processes", "end")
    yield Table([_attempt(number, one) for number, one in enumerate(found.attempts, 1)], names)


def _attempt(number: int, one: Attempt) -> list[str]:
    processes = "" if one.processes is None else str(one.processes)
    end = "no end recorded" if one.end is None else f"{one.end} {one.why}".strip()
    steps = f"{one.first_step} to {one.last_step}"
    return [str(number), _when(one.started), steps, format_seconds(one.seconds), processes, end]


def _when(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return "unknown"


def _checkpoints(facts: Facts) -> Table:
    rows = []
    for one in facts.checkpoints:
        shown = [f"{name} {format_number(name, value)}" for name, value in one.metrics.items()]
        state = f"broken: {'; '.join(one.faults)}" if one.faults else one.state
        rows.append([one.name, format_size(one.size), "  ".join(shown[:4]), state])
    return Table(rows, ("checkpoint", "size", "results", "state"))


def _appendix(facts: Facts) -> Iterator[Block]:
    if facts.config is not None:
        yield Code(f"Configuration ({files.CONFIG})", facts.config)
    for count, env in enumerate(facts.environments, 1):
        of = f", attempt {count}" if len(facts.environments) > 1 else ""
        yield Code(f"Environment{of}", json.dumps(env, indent=2, ensure_ascii=False))
    if facts.log:
        yield Code("Last lines of the log", "\n".join(facts.log))
