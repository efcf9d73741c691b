"""`CostReport`: what each part of a step costs.

The module has four sections: the costs that were found, their tables and files, the meter that
measures them, and the hook that installs the meter and checks budgets.
"""

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from stoker.core import dist
from stoker.core.errors import StokerError, did_you_mean
from stoker.core.log import get_logger
from stoker.core.op_counter import Counter, Counts
from stoker.core.timers import Timer, guards
from stoker.events import Writer
from stoker.hooks.base.dispatch import Call, HookList, Observer
from stoker.hooks.base.hook import Hook
from stoker.hooks.checkpoint import Checkpoint
from stoker.metrics import Metric
from stoker.run import Run
from stoker.rundir import files
from stoker.storage import local_path, write_atomic

_log = get_logger()

VERSION = 1
"""The version of ``cost.json``."""

PHASES = ("data", "forward", "backward", "update", "hooks", "writers", "other")
"""The phases of a step; "other" is the loop itself and any code outside the other phases."""

STEP_POINTS = ("before_step", "after_forward", "before_update", "after_step")

_ENGINE_PHASES = {
    "backward": "backward",
    "zero_grad": "update",
    "update": "update",
    "adjust_lr": "update",
}
"""The measured methods of the engine and their phases."""

_SAVE = "save"
"""The measured method of `Checkpoint`, which runs between steps."""

_FORWARD_ENDS_WITH = ("after_forward", "backward")


# Costs


@dataclass(slots=True, eq=False)
class CostRow:
    """What one hook, or one metric or writer in it, costs at one point.

    Attributes:
        hook: The name of the hook; empty for a method of the engine.
        point: The point of the run, or the name of the method.
        phase: The phase of the step it belongs to.
        part: The metric or writer; empty for the hook itself.
        timer: The calls that were timed.
        counted: The number of calls in which operations were counted.
        counts: The operations in those calls.
    """

    hook: str
    point: str
    phase: str
    part: str = ""
    timer: Timer = field(default_factory=Timer)
    counted: int = 0
    counts: Counts = field(default_factory=Counts)

    @property
    def in_step(self) -> bool:
        """Whether it is part of a step, rather than of an epoch or a validation."""
        return not self.hook or self.point in (*STEP_POINTS, _SAVE)

    @property
    def title(self) -> str:
        """The name to display."""
        return f"{self.hook} › {self.part}" if self.part else self.hook or self.point


@dataclass(frozen=True)
class Costs:
    """The times and operation counts of some steps.

    Attributes:
        rows: The costs of each hook, metric and writer at each point.
        phases: The seconds of all timed steps together, by phase.
        steps: The seconds of each timed step.
        counted: The number of steps in which operations were counted.
        rest: The operations of those steps outside hooks, the backward pass and the update.
        warmup: The number of steps before measuring started.
        processes: The number of processes that trained.
        compiled: Whether model and criterion were compiled; then only hooks are counted.
    """

    rows: list[CostRow]
    phases: dict[str, float]
    steps: list[float]
    counted: int
    rest: Counts
    warmup: int
    processes: int
    compiled: bool

    @property
    def step_seconds(self) -> float:
        """The mean seconds per step."""
        return sum(self.phases.values()) / len(self.steps)

    @property
    def shares(self) -> dict[str, float]:
        """The fraction of a step that each phase takes."""
        total = sum(self.phases.values())
        return {name: seconds / total for name, seconds in self.phases.items()}

    def counts_of(self, phase: str) -> Counts | None:
        """Return the operations of a phase over all counted steps, or None if not counted."""
        if phase in ("data", "other") or not self.counted:
            return None
        if self.compiled and phase not in ("hooks", "writers"):
            return None
        found = Counts()
        rows = [row for row in self.rows if row.phase == phase and row.in_step and not row.part]
        rest = [self.rest] if phase == "forward" else []
        for counts in [*(row.counts for row in rows), *rest]:
            found.operations += counts.operations
            found.syncs += counts.syncs
            found.collectives += counts.collectives
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the content of ``cost.json``; rows hold totals over their calls."""
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
            "guards": {
                name: {"calls": timer.count, "seconds": timer.total}
                for name, timer in guards.items()
            },
        }


def _per_step(counts: Counts | None, steps: int) -> dict[str, float]:
    if counts is None:
        return {}
    return {name: value / steps for name, value in asdict(counts).items()}


# Tables and files


def phase_table(costs: Costs) -> list[list[str]]:
    """Return the phases of a step as a table, starting with its header."""
    table = [["phase", "µs", "share", "operations", "syncs", "collectives"]]
    for name in PHASES:
        seconds, counts = costs.phases[name] / len(costs.steps), costs.counts_of(name)
        numbers = ["", "", ""] if counts is None else _means(counts, costs.counted)
        table.append([name, f"{seconds * 1e6:,.0f}", f"{costs.shares[name]:.1%}", *numbers])
    table.append(["total", f"{costs.step_seconds * 1e6:,.0f}", "", "", "", ""])
    return table


def hook_table(costs: Costs) -> list[list[str]]:
    """Return the cost per call of hooks, metrics and writers, the most expensive hook first."""
    table = [["hook", "point", "calls", "µs/call", "operations", "syncs", "collectives"]]
    rows = [row for row in costs.rows if row.hook and (row.in_step or _is_measured(row))]
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


def guard_table() -> list[list[str]]:
    """Return what the guarantees of a run have cost as a table, starting with its header."""
    table = [["guarantee", "calls", "ms/call"]]
    for name, timer in guards.items():
        cost = f"{timer.mean * 1e3:,.2f}" if timer.count else ""
        table.append([name, str(timer.count), cost])
    return table


def _is_measured(row: CostRow) -> bool:
    return bool(row.timer.count or any(asdict(row.counts).values()))


def _means(counts: Counts, calls: int) -> list[str]:
    numbers = (counts.operations, counts.syncs, counts.collectives)
    return [f"{number / calls:.3g}" if number else "0" for number in numbers]


class Span(NamedTuple):
    """An interval of `perf_counter` time with a name."""

    name: str
    phase: str
    start: float
    end: float


def chrome_trace(spans: Iterable[Span]) -> dict[str, Any]:
    """Return spans in the trace format of Perfetto and chrome://tracing."""
    ordered = sorted(spans, key=lambda span: (span.start, -span.end))
    origin = ordered[0].start if ordered else 0.0
    process = os.getpid()
    thread = {"name": "thread_name", "ph": "M", "args": {"name": "training loop"}}
    events = [
        {
            "name": span.name,
            "cat": span.phase,
            "ph": "X",
            "ts": (span.start - origin) * 1e6,
            "dur": (span.end - span.start) * 1e6,
            "pid": process,
            "tid": 0,
        }
        for span in ordered
    ]
    return {"traceEvents": [{**thread, "pid": process, "tid": 0}, *events], "displayTimeUnit": "ms"}


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_atomic(path, json.dumps(value) + "\n")


# Measuring


class Meter:
    """Measure times while `timing` is set and count operations while `counting` is set.

        begin_step      the batches have arrived
          measured calls, each in its phase; the time before a backward call or the point
          after_forward belongs to "forward", any other time between calls to "other"
        end_step
          measured calls between steps: saves

    Times and counts come from different steps, because counting slows down the counted code. The
    meter's own overhead is excluded.

    Args:
        counter: Counts the operations.
        entire_step: Count all operations of a step, not only those of hooks.
    """

    def __init__(self, counter: Counter, *, entire_step: bool) -> None:
        self.timing = self.counting = False
        self.phases = dict.fromkeys(PHASES, 0.0)
        self.rest = Counts()
        self.spans: list[Span] = []
        self.steps: list[float] = []
        self.steps_counted = 0
        self._counter, self._entire_step = counter, entire_step
        self._open: list[float] = []  # start times of the calls in progress
        self._unassigned: float | None = None  # start of the time that belongs to no call yet
        self._step_start = 0.0
        self._phases_before = 0.0  # seconds of all phases before the current step
        self._step_end: float | None = None  # end of the last step, unless the epoch ended
        self._between = 0.0  # seconds of measured calls since then

    def begin_step(self, waited: float) -> None:
        """Begin a step that ``waited`` seconds for its batches."""
        now = perf_counter()
        self._step_start = now - waited
        self._phases_before = sum(self.phases.values()) - self._between
        if self.timing:
            self._add("data", self._step_start, now)
            if self._step_end is not None:
                gap = self._step_start - self._between - self._step_end
                self.phases["other"] += max(0.0, gap)
        if self.counting and self._entire_step:
            self._counter.open[:] = [self.rest]
            self._counter.start()
        self._unassigned = perf_counter()

    def end_step(self) -> None:
        """End the current step."""
        now = perf_counter()
        if self.timing:
            self._assign("other", now)
            self.spans.append(Span("step", "step", self._step_start, now))
            self.steps.append(sum(self.phases.values()) - self._phases_before)
        if self.counting:
            self.steps_counted += 1
        self.stop_counting()
        self._unassigned, self._between, self._step_end = None, 0.0, perf_counter()

    def leave_epoch(self) -> None:
        """Exclude the time until the next step."""
        self._step_end = None

    def stop_counting(self) -> None:
        """Stop counting, also in a step that failed."""
        if self._counter.running:
            self._counter.stop()
        self._counter.open.clear()

    def enter(self, row: CostRow) -> None:
        """Begin a measured call."""
        if self.timing and not self._open:
            self._assign("forward" if row.point in _FORWARD_ENDS_WITH else "other", perf_counter())
        if self.counting:
            if not self._open:
                self._counter.open.clear()
            self._counter.open.append(row.counts)
            if not self._counter.running:
                self._counter.start()
        self._open.append(perf_counter())

    def leave(self, row: CostRow) -> None:
        """End a measured call."""
        now = perf_counter()
        start = self._open.pop()
        if self.counting:
            row.counted += 1
            self._counter.open.pop()
            if not self._open:
                self._resume_counting()
            return
        row.timer.add(now - start)
        self.spans.append(Span(row.title, row.phase, start, now))
        if self._open:
            return
        if self._unassigned is not None:
            self.phases[row.phase] += now - start
            self._unassigned = perf_counter()
        elif row.point == _SAVE and self._step_end is not None:
            self._between += now - start
            self.phases[row.phase] += now - start

    def _resume_counting(self) -> None:
        """Count what follows for the step itself, or stop."""
        if self._unassigned is not None and self._entire_step:
            self._counter.open.append(self.rest)
        else:
            self._counter.stop()

    def _assign(self, phase: str, now: float) -> None:
        """Assign the time since the last call to a phase."""
        if self._unassigned is not None and now > self._unassigned:
            self._add(phase, self._unassigned, now)
            self._unassigned = now

    def _add(self, phase: str, start: float, end: float) -> None:
        self.phases[phase] += end - start
        if phase != "other":
            self.spans.append(Span(phase, phase, start, end))


class MeasuredCall:
    """A call that is measured while its meter is on and only forwarded otherwise.

    It compares equal to the original, so that `HookList.owner` finds the hook it belongs to.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, call: Callable[..., Any], row: CostRow, meter: Meter) -> None:
        self._call, self._row, self._meter = call, row, meter

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original."""
        meter = self._meter
        if not (meter.timing or meter.counting):
            return self._call(*args, **kwargs)
        meter.enter(self._row)
        try:
            return self._call(*args, **kwargs)
        finally:
            meter.leave(self._row)

    def __eq__(self, other: object) -> bool:
        return bool(self._call == other)


# The hook


@dataclass(frozen=True)
class Budget:
    """The most a hook may cost per call at a point of a step, on average.

    Attributes:
        operations: Tensor operations; None for no limit.
        syncs: Reads of tensor values by the host, which wait for the device; None for no limit.
        collectives: Collective operations; None for no limit.
    """

    operations: float | None = None
    syncs: float | None = None
    collectives: float | None = None


class OverBudget(StokerError):  # noqa: N818
    """A hook costs more than its budget allows."""


class CostReport(Observer):
    """Measure the time, tensor operations, syncs and collectives of hooks, metrics and writers.

        CostReport()                                                  # cost.json in the run folder
        CostReport(budgets={"Loss": Budget(operations=3, syncs=0)})   # raises OverBudget

    After ``warmup`` steps it times ``steps`` steps and counts operations in as many again,
    separately, because counting slows down the counted code. Then it uninstalls itself, so the rest
    of the run costs nothing. The result is in the attribute `costs`.

    Args:
        steps: How many steps to time, and how many to count.
        warmup: How many steps to skip first.
        budgets: Limits by hook name, checked at the four points of a step.
        path: The file for the numbers. None means ``cost.json`` in the run folder, if there is one.
        trace: The file for a trace of the timed steps, for Perfetto or chrome://tracing.
    """

    priority = 0
    same_on_all_ranks = True
    writes = True

    def __init__(
        self,
        *,
        steps: int = 50,
        warmup: int = 5,
        budgets: Mapping[str, Budget] | None = None,
        path: str | Path | None = None,
        trace: str | Path | None = None,
    ) -> None:
        if steps < 1 or warmup < 0:
            raise ValueError(
                f"steps must be at least 1 and warmup at least 0, got steps={steps} and "
                f"warmup={warmup}"
            )
        self.steps, self.warmup = steps, warmup
        self.budgets = dict(budgets or {})
        self.path = local_path(path) if path is not None else None
        self.trace = local_path(trace, "trace") if trace is not None else None
        self.costs: Costs | None = None
        self._hooks: HookList | None = None
        self._calls: dict[str, tuple[Call, ...]] = {}
        self._undo: list[Callable[[], None]] = []
        self._rows: dict[tuple[str, str, str], CostRow] = {}
        self._meter: Meter | None = None
        self._seen = 0
        self._waited = 0.0

    @property
    def steps_needed(self) -> int:
        """The number of steps until the report is complete."""
        return self.warmup + 2 * self.steps

    def observe(self, hooks: HookList) -> None:
        """Check that every budget names a hook."""
        names = [hook.name for hook in hooks]
        for name in self.budgets:
            if name not in names:
                raise ValueError(
                    f"budgets names {name!r}, but the run has no such hook"
                    f"{did_you_mean(name, names)} (hooks: {', '.join(names)})"
                )
        self._hooks = hooks

    def before_run(self, run: Run) -> None:
        """Install the meter."""
        if run.task == "fit" and self.costs is None:
            self._install(run)

    def before_epoch(self, run: Run) -> None:
        """Measure the time spent waiting for data."""
        if self._meter is not None:
            assert run.feeder is not None
            run.feeder.timed = True
            self._waited = run.feeder.waited

    def before_step(self, run: Run) -> None:
        """Begin a step, before all other hooks."""
        if self._meter is not None:
            assert run.feeder is not None
            waited, self._waited = run.feeder.waited - self._waited, run.feeder.waited
            self._meter.begin_step(waited)

    def after_step(self, run: Run) -> None:
        """End a step, after all other hooks."""
        meter = self._meter
        if meter is None:
            return
        meter.end_step()
        self._seen += 1
        meter.timing = self.warmup <= self._seen < self.warmup + self.steps
        meter.counting = self.warmup + self.steps <= self._seen < self.steps_needed
        if self._seen == self.steps_needed:
            self._finish(run)

    def before_val(self, run: Run) -> None:
        """Exclude a validation, or the end of an epoch."""
        if self._meter is not None:
            self._meter.leave_epoch()

    after_train_epoch = before_val

    def after_train(self, run: Run) -> None:
        """Report the steps measured so far if the run ended early."""
        if self._meter is not None and run.error is None and run.task == "fit":
            if self._meter.steps:
                self._finish(run)
            elif self._seen:
                _log.warning(
                    f"CostReport measured nothing: the run ended after {self._seen} steps, and "
                    f"the first {self.warmup} are warmup"
                )
        self._uninstall()

    def after_run(self, run: Run) -> None:
        """Uninstall the meter."""
        self._uninstall()

    on_exception = after_run

    def check(self, budgets: Mapping[str, Budget]) -> None:
        """Compare the measured costs with budgets.

        Raises:
            OverBudget: Lists every hook and point over its budget, with the cost and the limit.
        """
        if self.costs is None or not self.costs.counted:
            raise OverBudget(
                f"budgets cannot be checked: the run ended after {self._seen} steps, and counting "
                f"starts after {self.warmup + self.steps}"
            )
        violations = [
            violation
            for row in self.costs.rows
            if row.hook in budgets and not row.part and row.point in STEP_POINTS
            for violation in _violations(row, budgets[row.hook])
        ]
        if violations:
            raise OverBudget("; ".join(violations))

    def _install(self, run: Run) -> None:
        """Measure the calls of all hooks, and the methods of their parts and of the engine."""
        engine, hooks = run.engine, self._hooks
        assert hooks is not None
        on_host = engine.device.type == "cpu"
        self._meter = Meter(Counter(on_host=on_host), entire_step=not engine.compile_mode)
        self._meter.timing = self.warmup == 0
        self._rows, self._seen = {}, 0
        self._calls = dict(hooks.calls)
        for point, calls in self._calls.items():
            others = [self._measured(call, point) for call in calls if call != getattr(self, point)]
            own = [getattr(self, point)] if len(others) < len(calls) else []
            hooks.calls[point] = (*others, *own) if point == "after_step" else (*own, *others)
        for hook in hooks:
            known = set()  # a hook may hold the same object twice
            for part, owner, methods in _parts(hook):
                for method in methods if id(owner) not in known else ():
                    self._replace(owner, method, hook, part)
                known.add(id(owner))
        for method in _ENGINE_PHASES:
            self._replace(engine, method, None, "")

    def _measured(self, call: Call, point: str) -> Call:
        assert self._hooks is not None
        owner = self._hooks.owner(call, point)
        return call if owner is None else self._wrap(call, owner, point, "")

    def _wrap(self, call: Call, hook: Hook | None, point: str, part: str) -> Any:
        assert self._meter is not None
        if hook is None:
            row = CostRow("", point, _ENGINE_PHASES[point])
        else:
            row = CostRow(hook.name, point, "writers" if hook.writes else "hooks", part)
        return MeasuredCall(call, self._rows.setdefault((row.hook, part, point), row), self._meter)

    def _replace(self, owner: Any, method: str, hook: Hook | None, part: str) -> None:
        """Measure a method of one object until `_undo` runs."""
        original = vars(owner).get(method)
        setattr(owner, method, self._wrap(getattr(owner, method), hook, method, part))
        if original is None:
            self._undo.append(lambda: delattr(owner, method))
        else:
            self._undo.append(lambda: setattr(owner, method, original))

    def _uninstall(self) -> None:
        """Restore all calls, and drop the calls of this hook once the report is complete."""
        if self._meter is None or self._hooks is None:
            return
        self._meter.timing = self._meter.counting = False
        self._meter.stop_counting()
        self._meter = None
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        for point, calls in self._calls.items():
            own = getattr(self, point) if self.costs is not None else None
            self._hooks.calls[point] = tuple(call for call in calls if call != own)

    def _finish(self, run: Run) -> None:
        meter = self._meter
        assert meter is not None
        self.costs = Costs(
            rows=[row for row in self._rows.values() if row.timer.count or row.counted],
            phases=meter.phases,
            steps=meter.steps,
            counted=meter.steps_counted,
            rest=meter.rest,
            warmup=self.warmup,
            processes=dist.world_size(),
            compiled=bool(run.engine.compile_mode),
        )
        assert run.feeder is not None
        run.feeder.timed = False  # from its next pass on, unless another hook needs it
        self._uninstall()
        if dist.is_main():
            path = self.path or (run.dir / files.COST if run.dir is not None else None)
            if path is not None:
                write_json(path, self.costs.as_json())
            if self.trace is not None:
                write_json(self.trace, chrome_trace(meter.spans))
        if self.budgets:
            self.check(self.budgets)


def _parts(hook: Hook) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Yield the measured parts of a hook: a title, the object, and its methods to measure."""
    if isinstance(hook, Checkpoint):
        yield "", hook, (_SAVE,)
    for value in vars(hook).values():
        items: Collection[tuple[str, Any]] = [("", value)]
        if isinstance(value, Mapping):
            items = value.items()
        elif isinstance(value, list | tuple):
            items = [("", item) for item in value]
        for name, item in items:
            title = name or type(item).__name__
            if not hasattr(item, "__dict__"):
                continue  # its methods cannot be replaced
            if isinstance(item, Writer):
                yield title, item, ("write",)
            elif isinstance(item, Metric):
                yield title, item, ("update", "compute")


def _violations(row: CostRow, budget: Budget) -> Iterator[str]:
    for limit in fields(Budget):
        allowed = getattr(budget, limit.name)
        found = getattr(row.counts, limit.name) / max(1, row.counted)
        if allowed is not None and found > allowed:
            yield (
                f"hook {row.hook!r} has {found:g} {limit.name} per call of {row.point}, "
                f"its budget allows {allowed:g}"
            )
