"""A report about runs, as blocks."""

import json
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from stoker.events.writers.console import format_number
from stoker.hooks.base.monitor import Monitor
from stoker.report.blocks import Block, Chart, Charts, Code, Heading, Line, Shares, Table, Text
from stoker.report.card import card_of
from stoker.report.facts import Curve, Facts
from stoker.report.format import said_seconds, said_share
from stoker.report.goodput import KINDS, Attempt, Goodput
from stoker.storage import format_size

_MOST_CHARTS = 60
_FIRST = ("train/", "val/", "lr", "grad_norm")


def document(runs: Sequence[Facts]) -> list[Block]:
    """The whole report: all runs together first, then each by itself."""
    blocks: list[Block] = [Heading("Overview"), _overview(runs), *_all_curves(runs)]
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
    whole = sum(not one.faults for one in facts.checkpoints)
    broken = len(facts.checkpoints) - whole
    counters = [f"{last[key]:,.0f}" if key in last else "" for key in ("step", "epoch", "samples")]
    return [
        facts.name,
        facts.state + (", broken files" if facts.faults else ""),
        *counters,
        said_seconds(found.whole) if found else "",
        said_share(found.share) if found else "",
        f"{whole} whole" + (f", {broken} broken" if broken else ""),
    ]


def _all_curves(runs: Sequence[Facts]) -> Iterator[Block]:
    names = list(dict.fromkeys(name for facts in runs for name in facts.curves))
    place = {first: number for number, first in enumerate(_FIRST)}
    names.sort(key=lambda name: min([place[one] for one in _FIRST if name.startswith(one)] or [9]))
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
        yield Text(f"{len(names) - _MOST_CHARTS} more names are left out.")


def _differences(runs: Sequence[Facts]) -> Iterator[Block]:
    keys = dict.fromkeys(key for facts in runs for key in facts.settings)
    rows = []
    for key in keys:
        shown = [said(facts.settings[key]) if key in facts.settings else "" for facts in runs]
        if len(set(shown)) > 1:
            rows.append([key, *shown])
    yield Heading("What is configured otherwise")
    if rows:
        yield Table(rows, ("", *(facts.name for facts in runs)))
    else:
        yield Text("Nothing that their config.yaml tells.")


def _one(facts: Facts) -> Iterator[Block]:
    yield Heading(facts.name)
    for fault in facts.faults:
        yield Text(fault, warns=True)
    yield Heading("Model card", 3)
    yield Table(card_of(facts))
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
        at_best = ["", ""] if best is None else [format_number(name, curve.values[best]),
                                                str(curve.steps[best])]  # fmt: skip
        rows.append([name, format_number(name, curve.values[-1]), str(curve.steps[-1]), *at_best])
    return rows


def _best(name: str, curve: Curve) -> int | None:
    try:
        sign = 1 if Monitor(name).mode == "min" else -1
    except ValueError:  # the name does not tell
        return None
    finite = [i for i, value in enumerate(curve.values) if math.isfinite(value)]
    return min(finite, key=lambda i: sign * curve.values[i], default=None)


def _goodput(found: Goodput) -> Iterator[Block]:
    yield Heading("Goodput", 3)
    again = f" {found.steps_again} steps were made again." if found.steps_again else ""
    yield Text(
        f"{said_share(found.share)} of {said_seconds(found.whole)} in all attempts was useful "
        f"training.{again}"
    )
    parts = [(KINDS[kind], seconds) for kind, seconds in found.seconds.items() if seconds]
    yield Shares(parts)
    names = ("attempt", "began", "steps", "time", "processes", "end")
    yield Table([_attempt(number, one) for number, one in enumerate(found.attempts, 1)], names)


def _attempt(number: int, one: Attempt) -> list[str]:
    processes = "" if one.processes is None else str(one.processes)
    end = "no end was noted" if one.end is None else f"{one.end} {one.why}".strip()
    steps = f"{one.first_step} to {one.last_step}"
    return [str(number), _when(one.began), steps, said_seconds(one.seconds), processes, end]


def _when(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return "at an unknown time"


def _checkpoints(facts: Facts) -> Table:
    rows = []
    for one in facts.checkpoints:
        metrics = one.info.get("metrics")
        numbers = metrics.items() if isinstance(metrics, dict) else ()
        shown = [
            f"{name} {format_number(str(name), v)}" for name, v in numbers if isinstance(v, float)
        ]
        state = "whole" if not one.faults else f"broken: {'; '.join(one.faults)}"
        rows.append([one.name, format_size(one.size), "  ".join(shown[:4]), state])
    return Table(rows, ("checkpoint", "size", "results", "state"))


def _appendix(facts: Facts) -> Iterator[Block]:
    if facts.config is not None:
        yield Code("Configuration (config.yaml)", facts.config)
    for count, env in enumerate(facts.environments, 1):
        of = f", attempt {count}" if len(facts.environments) > 1 else ""
        yield Code(f"Environment{of}", json.dumps(env, indent=2, ensure_ascii=False))
    if facts.log:
        yield Code("The last lines of the log", "\n".join(facts.log))


def said(value: Any) -> str:
    """A value of a config, as YAML has it."""
    try:
        return value if isinstance(value, str) else json.dumps(value, default=str)
    except ValueError:
        return repr(value)
