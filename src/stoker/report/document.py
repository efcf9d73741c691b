"""A report about runs, as blocks that every output format renders."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from stoker.events.writers.console import format_number, format_seconds
from stoker.hooks.base.monitor import best_index
from stoker.rundir import files
from stoker.rundir.goodput import Goodput, format_share, goodput_of
from stoker.rundir.provenance import differences, format_value
from stoker.rundir.reader import (
    KINDS,
    Attempt,
    CheckpointInfo,
    Curve,
    RunReader,
    Weights,
    monitored_result,
)
from stoker.rundir.settings import settings_of
from stoker.rundir.status import Status
from stoker.rundir.timeline import Event, events_of
from stoker.storage import format_size


@dataclass(frozen=True)
class Heading:
    """A heading: level 2 for a section, level 3 for a part of it."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph; ``warns`` highlights it."""

    text: str
    warns: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells below column names; without names, the first cell of a row is its name."""

    rows: Sequence[Sequence[str]]
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Code:
    """Preformatted text that a reader can unfold."""

    title: str
    text: str


@dataclass(frozen=True)
class Line:
    """A curve of one run."""

    run: str
    color: int
    curve: Curve


@dataclass(frozen=True)
class Chart:
    """Curves of one name in one diagram."""

    name: str
    lines: Sequence[Line]


@dataclass(frozen=True)
class Charts:
    """Charts next to each other."""

    charts: Sequence[Chart]


@dataclass(frozen=True)
class Shares:
    """Parts of a total, by name."""

    parts: Sequence[tuple[str, float]]


Block: TypeAlias = Heading | Text | Table | Code | Charts | Shares


_LOG_LINES = 40
_LONGEST_CELL = 160
_FEWEST_EVENTS = 2  # a start and an end say nothing new
_MOST_EVENTS = 200
_LOG_BYTES = 100_000


@dataclass
class Facts:
    """Everything that a report shows of one run; `faults` lists the files that are broken."""

    path: Path
    name: str
    config: str | None
    settings: dict[str, Any]
    environments: list[dict[str, Any]]
    curves: dict[str, Curve]
    last: dict[str, float]
    checkpoints: list[CheckpointInfo]
    goodput: Goodput | None
    weights: Weights | None
    log: list[str]
    faults: list[str]
    status: Status
    events: list[Event]


def read_facts(path: Path, *, quick: bool = False) -> Facts:
    """Read a run folder.

    Args:
        path: the folder.
        quick: check only the sizes of checkpoint files, not every byte.
    """
    reader = RunReader(path)
    reader.read_metrics()
    attempts, text, settings = reader.attempts(), reader.config_text(), reader.config()
    status = reader.status(settings)
    log, _ = reader.log(_LOG_BYTES)
    return Facts(
        path=path,
        name=path.absolute().name,
        config=text,
        settings=settings,
        environments=reader.environments(),
        curves=reader.curves(),
        last=reader.last_row(),
        checkpoints=reader.checkpoints(verify=not quick)[::-1],
        goodput=goodput_of(attempts) if attempts else None,
        weights=reader.weights(),
        log="\n".join(log).splitlines()[-_LOG_LINES:],
        faults=reader.faults,
        status=status,
        events=events_of(attempts, status.state),
    )


_PARTS = {
    "model": "model",
    "criterion": "criterion",
    "optimizer": "optimizer",
    "lr_scheduler": "learning rate schedule",
    "train_loader": "training data",
    "val_loader": "validation data",
}
_HOW = ("seed", "precision", "micro_batch", "accumulate", "global_batch", "clip_norm")


def model_card(facts: Facts) -> list[list[str]]:
    """Return the rows of the card, without those that nothing is known of."""
    rows = []
    for key, title in _PARTS.items():
        if call := _call(facts.settings, key):
            rows.append([title, call])
    how = [(name, facts.settings.get(f"run.{name}")) for name in _HOW]
    if settings := ", ".join(f"{name} {value}" for name, value in how if value is not None):
        rows.append(["training", settings])
    last = facts.last
    if "step" in last:
        counted = {"steps": "step", "epochs": "epoch", "samples": "samples"}
        counts = [f"{last[key]:,.0f} {name}" for name, key in counted.items() if key in last]
        rows.append(["trained for", ", ".join(counts)])
    if facts.weights is not None:
        w = facts.weights
        numbers = f"{w.count:,} in {w.tensors} tensors of {', '.join(w.dtypes) or 'nothing'}"
        rows.append(["weights", f"{numbers} ({format_size(w.size)})"])
        path = str(facts.path / files.WEIGHTS)
        rows.append(["load them with", f"stoker.load_weights(model, {path!r})"])
    return rows + _environment(facts)


def _call(settings: Mapping[str, Any], key: str) -> str:
    """Return a node of the config as a call: the target and its plain arguments."""
    target = settings.get(f"{key}._target_", settings.get(f"{key}.type", settings.get(key)))
    if not isinstance(target, str):
        return ""
    inside = f"{key}."
    own = {name.removeprefix(inside): v for name, v in settings.items() if name.startswith(inside)}
    plain = [
        f"{name}={value}"
        for name, value in own.items()
        if not name.endswith(("_target_", "type")) and isinstance(value, str | int | float)
    ]
    dataset = own.get("dataset._target_")
    data = f" of {dataset}" if isinstance(dataset, str) else ""
    return f"{target}({', '.join(plain)}){data}"


def _environment(facts: Facts) -> list[list[str]]:
    if not facts.environments:
        return []
    env = facts.environments[-1]
    packages = env.get("packages")
    named = packages.items() if isinstance(packages, dict) else ()
    versions = [f"{name} {version}" for name, version in named if isinstance(version, str)]
    rows = [["made with", ", ".join([f"Python {env.get('python')}", *versions])]]
    system = env.get("system")
    if isinstance(system, dict):
        accelerators = system.get("accelerators") or "no accelerator"
        cpus = f"{system['cpus']} CPUs" if system.get("cpus") is not None else None
        parts = [system.get("platform") or system.get("host"), cpus, accelerators]
        rows.append(["on", ", ".join(str(part) for part in parts if part is not None)])
    git = env.get("git")
    if isinstance(git, dict):
        changed = ", with uncommitted changes" if git.get("dirty") else ""
        rows.append(["code", f"commit {git.get('commit')}{changed}"])
    return rows


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
    found, last, status = facts.goodput, facts.last, facts.status
    valid = sum(not one.faults for one in facts.checkpoints)
    broken = len(facts.checkpoints) - valid
    return [
        facts.name,
        status.state + (", broken files" if facts.faults else ""),
        _of(status.step, status.total),
        _of(status.epoch, status.epochs),
        f"{last['samples']:,.0f}" if "samples" in last else "",
        format_seconds(found.total) if found else "",
        format_share(found.share) if found else "",
        f"{valid} valid" + (f", {broken} broken" if broken else ""),
    ]


def _of(done: int, total: int | None) -> str:
    return f"{done:,}" if total is None or total == done else f"{done:,} of {total:,}"


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
        yield Charts(charts)
    if len(names) > _MOST_CHARTS:
        yield Text(f"{len(names) - _MOST_CHARTS} more curves are left out.")


def _differences(runs: Sequence[Facts]) -> Iterator[Block]:
    rows = [
        [key, *(_cut(format_value(value)) for value in values)]
        for key, values in differences([settings_of(facts.settings) for facts in runs])
    ]
    if results := _compared(runs):
        yield Heading("Results compared")
        yield Text("The best value of each run, and the last one where it differs.")
        yield Table(results, ("", *(facts.name for facts in runs)))
    yield Heading("Configuration differences")
    if rows:
        yield Table(rows, ("", *(facts.name for facts in runs)))
    else:
        yield Text(f"None: their {files.CONFIG} files are the same.")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…"


def _compared(runs: Sequence[Facts]) -> list[list[str]]:
    """Return a row for each result that several runs have, the monitored ones first."""
    found = [{row[0]: row for row in _results(facts)} for facts in runs]
    names = dict.fromkeys(name for rows in found for name in rows)
    shared = [name for name in names if sum(name in rows for rows in found) > 1]
    return [[name, *(_best_and_last(rows.get(name)) for rows in found)] for name in shared]


def _best_and_last(row: list[str] | None) -> str:
    if row is None:
        return ""
    _, last, _, best, _ = row
    return f"{best} (last {last})" if best and best != last else last


def _one(facts: Facts) -> Iterator[Block]:
    yield Heading(facts.name)
    yield Text(f"{facts.status.state}: {facts.status.why}".removesuffix(": "))
    for fault in facts.faults:
        yield Text(fault, warns=True)
    yield Heading("Model card", 3)
    yield Table(model_card(facts))
    if results := _results(facts):
        yield Heading("Results", 3)
        yield Table(results, ("result", "last", "at step", "best", "at step"))
    if facts.goodput is not None:
        yield from _goodput(facts.goodput)
        yield from _timeline(facts.events)
    if facts.checkpoints:
        yield Heading("Checkpoints", 3)
        yield _checkpoints(facts)
    yield from _appendix(facts)


def _results(facts: Facts) -> list[list[str]]:
    rows = []
    monitored, mode = monitored_result(facts.settings)
    for name, curve in sorted(facts.curves.items(), key=lambda one: one[0] != monitored):
        if name != monitored and not name.startswith(("val/", "train/")):
            continue
        best = best_index(name, curve.values, mode if name == monitored else None)
        shown = ["", ""]
        if best is not None:
            shown = [format_number(name, float(curve.values[best[0]])), str(curve.steps[best[0]])]
        last = format_number(name, float(curve.values[-1]))
        rows.append([name, last, str(curve.steps[-1]), *shown])
    return rows


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


def _timeline(events: Sequence[Event]) -> Iterator[Block]:
    if len(events) > _FEWEST_EVENTS:
        yield Heading("Time line", 3)
        rows = [[_when(one.time), one.kind, f"{one.step:,}", one.text] for one in events]
        yield Table(rows[-_MOST_EVENTS:], ("when", "event", "step", "details"))


def _attempt(number: int, one: Attempt) -> list[str]:
    processes = "" if one.processes is None else str(one.processes)
    end = "no end recorded" if one.end is None else one.end
    if one.why:
        end = one.why if one.why.startswith(end) else f"{end}: {one.why}"
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
