"""`Meter`: where the time of steps goes, and what is asked of torch meanwhile."""

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from stoker.core import dist
from stoker.core.errors import StokerError, did_you_mean
from stoker.core.log import get_logger
from stoker.core.op_counter import Counter, Counts
from stoker.core.timers import Timer
from stoker.events import Writer
from stoker.hooks.base.dispatch import Call, HookList, Observer
from stoker.hooks.base.hook import Hook
from stoker.hooks.checkpoint import Checkpoint
from stoker.metrics import Metric
from stoker.run import Run
from stoker.storage import write_atomic

PHASES = ("data", "forward", "backward", "update", "hooks", "writers", "other")
"""What a step is made of; "other" is the loop itself and code that is none of the rest."""

_FORWARD_ENDS_WITH = ("after_forward", "backward")
STEP_POINTS = ("before_step", "after_forward", "before_update", "after_step")
BETWEEN_STEPS = "save"


@dataclass(slots=True, eq=False)
class Row:
    """What is found of one hook, or of a metric or writer in it, at one point.

    Attributes:
        hook: its name; empty for what the engine does.
        point: the point of the run, or the method of the engine.
        phase: what of a step it belongs to.
        part: the metric or writer.
        timer: the calls that were timed.
        counted: the calls that were counted.
        counts: what was counted in them.
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
        """Whether it is a part of a step, and not of an epoch or a validation."""
        return not self.hook or self.point in (*STEP_POINTS, BETWEEN_STEPS)

    @property
    def title(self) -> str:
        """The hook and its part, as people are shown them."""
        return f"{self.hook} › {self.part}" if self.part else self.hook or self.point


class Slice(NamedTuple):
    """A stretch of time on the clock of `perf_counter`."""

    name: str
    phase: str
    began: float
    ended: float


class Meter:
    """Takes times while `timing`, counts while `counting`, and does nothing else otherwise.

        begin_step      the batches are there
          measured calls, each of which belongs to a phase; what is before a backward call or the
          point after_forward is "forward", the rest "other"
        end_step
          measured calls between steps: saves

    Times and counts are taken apart, because counting slows down what it looks at. What the meter
    itself takes is left out.

    Args:
        counter: what counts.
        whole: count in the whole of a step and not only in hooks.
    """

    def __init__(self, counter: Counter, *, whole: bool) -> None:
        self.timing = self.counting = False
        self.phases = dict.fromkeys(PHASES, 0.0)
        self.rest = Counts()
        self.slices: list[Slice] = []
        self.steps: list[float] = []
        self.steps_counted = 0
        self._counter, self._whole = counter, whole
        self._open: list[float] = []  # when the calls began that are under way
        self._mark: float | None = None  # where the time begins that no call has taken yet
        self._began = 0.0
        self._before = 0.0  # the seconds of all phases when the step in hand began
        self._ended: float | None = None  # the end of the last step, if nothing came since
        self._between = 0.0  # the time of measured calls since then

    def begin_step(self, waited: float) -> None:
        """A step begins; ``waited`` is the seconds that its batches took to come."""
        now = perf_counter()
        self._began, self._before = now - waited, sum(self.phases.values()) - self._between
        if self.timing:
            self._add("data", self._began, now)
            if self._ended is not None:
                self.phases["other"] += max(0.0, self._began - self._between - self._ended)
        if self.counting and self._whole:
            self._counter.open[:] = [self.rest]
            self._counter.start()
        self._mark = perf_counter()

    def end_step(self) -> None:
        """The step is over."""
        now = perf_counter()
        if self.timing:
            self._cut("other", now)
            self.slices.append(Slice("step", "step", self._began, now))
            self.steps.append(sum(self.phases.values()) - self._before)
        if self.counting:
            self.steps_counted += 1
        self.stop_counting()
        self._mark, self._between, self._ended = None, 0.0, perf_counter()

    def leave_epoch(self) -> None:
        """What comes until the next step is none of it."""
        self._ended = None

    def stop_counting(self) -> None:
        """End a count of a whole step, also of one that failed."""
        if self._counter.running:
            self._counter.stop()
        self._counter.open.clear()

    def enter(self, row: Row) -> None:
        """A measured call begins."""
        if self.timing and not self._open:
            self._cut("forward" if row.point in _FORWARD_ENDS_WITH else "other", perf_counter())
        if self.counting:
            if not self._open:
                self._counter.open.clear()
            self._counter.open.append(row.counts)
            if not self._counter.running:
                self._counter.start()
        self._open.append(perf_counter())

    def leave(self, row: Row) -> None:
        """It is over."""
        now = perf_counter()
        began = self._open.pop()
        if self.counting:
            row.counted += 1
            self._counter.open.pop()
            if not self._open:
                self._go_on_counting()
            return
        row.timer.add(now - began)
        self.slices.append(Slice(row.title, row.phase, began, now))
        if self._open:
            return
        if self._mark is not None:
            self.phases[row.phase] += now - began
            self._mark = perf_counter()
        elif row.point == BETWEEN_STEPS and self._ended is not None:
            self._between += now - began
            self.phases[row.phase] += now - began

    def _go_on_counting(self) -> None:
        """What comes next belongs to the step itself, or is not counted at all."""
        if self._mark is not None and self._whole:
            self._counter.open.append(self.rest)
        else:
            self._counter.stop()

    def _cut(self, phase: str, now: float) -> None:
        """The time since the last call belongs to this phase."""
        if self._mark is not None and now > self._mark:
            self._add(phase, self._mark, now)
            self._mark = now

    def _add(self, phase: str, began: float, ended: float) -> None:
        self.phases[phase] += ended - began
        if phase != "other":
            self.slices.append(Slice(phase, phase, began, ended))


class Measured:
    """A call that is measured while its meter is on, and only passed on otherwise.

    It equals the call it stands for, so that whoever looks for the owner of a call finds it.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, call: Callable[..., Any], row: Row, meter: Meter) -> None:
        self._call, self._row, self._meter = call, row, meter

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the call returns."""
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
    """Write a JSON file atomically."""
    write_atomic(path, json.dumps(value) + "\n")


_log = get_logger()

_ENGINE = {
    "backward": "backward",
    "zero_grad": "update",
    "update": "update",
    "adjust_lr": "update",
}


@dataclass(frozen=True)
class Budget:
    """How much a hook may cost in each call at a point of a step, as a mean; None is no limit."""

    operations: float | None = None
    syncs: float | None = None
    collectives: float | None = None


class OverBudget(StokerError):  # noqa: N818
    """A hook costs more than its budget allows."""


class CostReport(Observer):
    """What each hook, metric and writer costs: time, tensor operations, readbacks, collectives.

        CostReport()                                              cost.json in the run folder
        CostReport(budgets={"Loss": Budget(operations=3, syncs=0)})   over it is an error

    After ``warmup`` steps it takes the times of ``steps`` steps and counts in as many again, apart,
    because counting slows down what it looks at. Then it leaves the hooks as they were: the rest of
    the run costs nothing more. `costs` is what it found.

    Args:
        steps: how many steps are timed, and how many are counted.
        warmup: how many are left out before.
        budgets: by the name of a hook. The four points of a step are judged.
        path: where the numbers go; None means ``cost.json`` in the run folder, if there is one.
        trace: where a trace of the timed steps goes, for chrome://tracing or Perfetto.
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
                f"CostReport takes at least 1 step after 0 or more, got steps={steps} and "
                f"warmup={warmup}"
            )
        self.steps, self.warmup = steps, warmup
        self.budgets = dict(budgets or {})
        self.path = Path(path) if path is not None else None
        self.trace = Path(trace) if trace is not None else None
        self.costs: Costs | None = None
        self._hooks: HookList | None = None
        self._calls: dict[str, tuple[Call, ...]] = {}
        self._undo: list[Callable[[], None]] = []
        self._rows: dict[tuple[str, str, str], Row] = {}
        self._meter: Meter | None = None
        self._seen = 0
        self._waited = 0.0

    @property
    def steps_needed(self) -> int:
        """How many steps a run has until the report is there."""
        return self.warmup + 2 * self.steps

    def observe(self, hooks: HookList) -> None:
        """Refuse budgets for hooks that there are none of."""
        names = [hook.name for hook in hooks]
        for name in self.budgets:
            if name not in names:
                raise ValueError(
                    f"there is a budget for hook {name!r}, and no such hook"
                    f"{did_you_mean(name, names)} (there is {', '.join(names)})"
                )
        self._hooks = hooks

    # The window

    def before_run(self, run: Run) -> None:
        """Stand between the loop and the hooks of a training."""
        if run.task == "fit" and self.costs is None:
            self._stand_between(run)

    def before_epoch(self, run: Run) -> None:
        """Have the waiting for data measured."""
        if self._meter is not None:
            assert run.feeder is not None
            run.feeder.timed = True
            self._waited = run.feeder.waited

    def before_step(self, run: Run) -> None:
        """Before all other hooks: the step begins."""
        if self._meter is not None:
            assert run.feeder is not None
            waited, self._waited = run.feeder.waited - self._waited, run.feeder.waited
            self._meter.begin_step(waited)

    def after_step(self, run: Run) -> None:
        """After all other hooks: the step ends."""
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
        """A validation is no part of a step."""
        if self._meter is not None:
            self._meter.leave_epoch()

    def after_train_epoch(self, run: Run) -> None:
        """Nor is the end of an epoch."""
        self.before_val(run)

    def on_exception(self, run: Run) -> None:
        """Leave everything as it was."""
        self._stand_aside()

    def after_train(self, run: Run) -> None:
        """Make do with the steps that there were."""
        if self._meter is not None and run.error is None and run.task == "fit":
            if self._meter.steps:
                self._finish(run)
            elif self._seen:
                _log.warning(
                    f"CostReport measured nothing: the run had {self._seen} steps, and "
                    f"{self.warmup} are left out to warm up"
                )
        self._stand_aside()

    def after_run(self, run: Run) -> None:
        """Leave everything as it was."""
        self._stand_aside()

    # Budgets

    def check(self, budgets: Mapping[str, Budget]) -> None:
        """Hold what was found against budgets.

        Raises:
            OverBudget: with every hook and point that is over, what was found and what is allowed.
        """
        if self.costs is None or not self.costs.counted:
            raise OverBudget(
                f"budgets cannot be checked: nothing was counted in a run of {self._seen} steps, "
                f"which CostReport does after {self.warmup + self.steps}"
            )
        faults = [
            fault
            for row in self.costs.rows
            if row.hook in budgets and not row.part and row.point in STEP_POINTS
            for fault in _over(row, budgets[row.hook])
        ]
        if faults:
            raise OverBudget("; ".join(faults))

    # Standing between

    def _stand_between(self, run: Run) -> None:
        engine, hooks = run.engine, self._hooks
        assert hooks is not None
        on_host = engine.device.type == "cpu"
        self._meter = Meter(Counter(on_host=on_host), whole=not engine.compiles)
        self._meter.timing = self.warmup == 0
        self._rows, self._seen = {}, 0
        self._calls = dict(hooks.calls)
        for point, calls in self._calls.items():
            others = [self._measured(call, point) for call in calls if call != getattr(self, point)]
            own = [getattr(self, point)] if len(others) < len(calls) else []
            hooks.calls[point] = (*others, *own) if point == "after_step" else (*own, *others)
        for hook in hooks:
            known = set()  # a hook may hold a thing twice
            for part, thing, names in _parts(hook):
                for name in names if id(thing) not in known else ():
                    self._replace(thing, name, hook, part)
                known.add(id(thing))
        for name in _ENGINE:
            self._replace(engine, name, None, "")

    def _measured(self, call: Call, point: str) -> Call:
        assert self._hooks is not None
        owner = self._hooks.owner(call, point)
        return call if owner is None else self._wrapped(call, owner, point, "")

    def _wrapped(self, call: Call, hook: Hook | None, point: str, part: str) -> Any:
        assert self._meter is not None
        if hook is None:
            row = Row("", point, _ENGINE[point])
        else:
            row = Row(hook.name, point, "writers" if hook.writes else "hooks", part)
        return Measured(call, self._rows.setdefault((row.hook, part, point), row), self._meter)

    def _replace(self, thing: Any, name: str, hook: Hook | None, part: str) -> None:
        """Have a method of this one object measured; `_undo` gives it back."""
        before = vars(thing).get(name)
        setattr(thing, name, self._wrapped(getattr(thing, name), hook, name, part))
        if before is None:
            self._undo.append(lambda: delattr(thing, name))
        else:
            self._undo.append(lambda: setattr(thing, name, before))

    def _stand_aside(self) -> None:
        """The hooks are called as if there were no report, which is not called any more."""
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
        rows = [row for row in self._rows.values() if row.timer.count or row.counted]
        self.costs = Costs(
            rows=rows,
            phases=meter.phases,
            steps=meter.steps,
            counted=meter.steps_counted,
            rest=meter.rest,
            warmup=self.warmup,
            processes=dist.world_size(),
            compiled=bool(run.engine.compiles),
        )
        assert run.feeder is not None
        run.feeder.timed = False  # from its next pass on, unless another hook wants it
        slices = meter.slices
        self._stand_aside()
        if dist.is_main():
            path = self.path or (run.dir / "cost.json" if run.dir is not None else None)
            if path is not None:
                write_json(path, self.costs.as_json())
            if self.trace is not None:
                write_json(self.trace, chrome_trace(slices))
        if self.budgets:
            self.check(self.budgets)


def _parts(hook: Hook) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """The metrics and writers that a hook holds, and its saving, each with what is measured."""
    if isinstance(hook, Checkpoint):
        yield "", hook, (BETWEEN_STEPS,)
    for value in vars(hook).values():
        held: Collection[tuple[str, Any]] = [("", value)]
        if isinstance(value, Mapping):
            held = value.items()
        elif isinstance(value, list | tuple):
            held = [("", one) for one in value]
        for name, one in held:
            title, closed = name or type(one).__name__, not hasattr(one, "__dict__")
            if isinstance(one, Writer) and not closed:
                yield title, one, ("write",)
            elif isinstance(one, Metric) and not closed:
                yield title, one, ("update", "compute")


def _over(row: Row, budget: Budget) -> Iterator[str]:
    for one in fields(Budget):
        allowed = getattr(budget, one.name)
        found = getattr(row.counts, one.name) / max(1, row.counted)
        if allowed is not None and found > allowed:
            yield (
                f"hook {row.hook!r} has {found:g} {one.name} per call of {row.point}, "
                f"its budget allows {allowed:g}"
            )
