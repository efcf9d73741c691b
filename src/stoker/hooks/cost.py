"""`CostReport`: what every hook, metric and writer of a run costs, and budgets for it."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stoker import dist
from stoker.counts import Counter
from stoker.errors import StokerError, did_you_mean
from stoker.events import Writer
from stoker.hooks.checkpoint import Checkpoint
from stoker.hooks.cost_meter import BETWEEN_STEPS, STEP_POINTS, Measured, Meter, Row
from stoker.hooks.costs import Costs, chrome_trace, write_json
from stoker.hooks.dispatch import Call, HookList, Observer
from stoker.hooks.hook import Hook
from stoker.log import get_logger
from stoker.metrics import Metric
from stoker.run import Run

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
    alike = True
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
            assert run.feed is not None
            run.feed.timed = True
            self._waited = run.feed.waited

    def before_step(self, run: Run) -> None:
        """Before all other hooks: the step begins."""
        if self._meter is not None:
            assert run.feed is not None
            waited, self._waited = run.feed.waited - self._waited, run.feed.waited
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
        assert run.feed is not None
        run.feed.timed = False  # from its next pass on, unless another hook wants it
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
