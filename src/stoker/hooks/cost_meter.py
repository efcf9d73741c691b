"""`Meter`: where the time of steps goes, and what is asked of torch meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

from stoker.counts import Counter, Counts
from stoker.timing import Timer

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
