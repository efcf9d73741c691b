"""`EventStorage`: the numbers of a run, put from anywhere and read by writers."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from stoker.core.tree import as_floats
from stoker.core.types import Scalar

_stack: list["EventStorage"] = []


def get_event_storage() -> "EventStorage":
    """Return the storage of the current run, for example to log from inside a model.

    >>> get_event_storage().put_scalar("attention/entropy", entropy)    # doctest: +SKIP
    """
    if not _stack:
        raise RuntimeError(
            "get_event_storage() was called outside a run: call it inside fit(), evaluate() or "
            "predict(), or inside 'with EventStorage():'"
        )
    return _stack[-1]


@dataclass(slots=True)
class Row:
    """The numbers of one step, ready to write."""

    step: int
    scalars: dict[str, float]


class HistoryBuffer(list[float]):
    """The latest values of a name, oldest first."""

    def values(self) -> list[float]:
        """Return the values as a plain list."""
        return list(self)

    def latest(self) -> float:
        """Return the latest value."""
        return self[-1]

    def median(self, window_size: int) -> float:
        """Return the median of the latest values."""
        return median(self[-window_size:])

    def avg(self, window_size: int) -> float:
        """Return the mean of the latest values."""
        last = self[-window_size:]
        return sum(last) / len(last)


@dataclass(slots=True)
class Cursor:
    """The position of a reader, which `EventStorage.unread` advances."""

    serial: int = 0
    gauge_step: int = -1


@dataclass(slots=True)
class _Series:
    """The latest values of one name."""

    smooth: bool
    values: deque[Scalar]
    step: int = 0
    serial: int = 0

    def reading(self) -> float:
        """Return the median of the latest values, or the latest value if not smoothed."""
        if not self.smooth:
            return float(self.values[-1])
        return median(as_floats(self.values))


@dataclass(eq=False)
class EventStorage:
    """Store scalars by name and step, in bounded memory.

    `put_scalar` stores a value. Writers show the median of the last ``window`` values of a smoothed
    name, and the latest value of any other. `gauge` registers a function that is called only when a
    writer reads. Values may be tensors; they stay on their device until a writer reads them.

    Args:
        window: How many values to keep of each name.
        step: The current step.
    """

    window: int = 20
    step: int = 0
    _series: dict[str, _Series] = field(default_factory=dict, repr=False)
    _gauges: dict[str, Callable[[], Scalar | None]] = field(default_factory=dict, repr=False)
    _serial: int = field(default=0, repr=False)
    _prefix: str = field(default="", repr=False)

    def put_scalar(self, name: str, value: Scalar, smoothing_hint: bool = True) -> None:
        """Store a number under ``name`` at the current step.

        Args:
            name: The name, such as ``"train/entropy"``.
            value: A number, or a tensor with one element.
            smoothing_hint: Whether writers smooth the values. It is fixed for each name.
        """
        if self._prefix:
            name = self._prefix + name
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = _Series(smoothing_hint, deque(maxlen=self.window))
        elif series.smooth is not smoothing_hint:
            raise ValueError(
                f"{name!r} was put with smoothing_hint={series.smooth} before and with "
                f"smoothing_hint={smoothing_hint} now: use the same value for all calls"
            )
        self._serial += 1
        series.serial = self._serial
        series.step = self.step
        series.values.append(value.detach() if isinstance(value, Tensor) else value)

    def put_scalars(self, *, smoothing_hint: bool = True, **scalars: Scalar) -> None:
        """Store several numbers at the current step."""
        for name, value in scalars.items():
            self.put_scalar(name, value, smoothing_hint)

    def gauge(self, name: str, read: Callable[[], Scalar | None]) -> None:
        """Register a function that returns the current value of ``name``, or None."""
        self._gauges[name] = read

    @contextmanager
    def name_scope(self, prefix: str) -> Iterator[None]:
        """Prepend ``prefix/`` to all names that are put in the block."""
        outer = self._prefix
        self._prefix = f"{outer}{prefix}/"
        try:
            yield
        finally:
            self._prefix = outer

    def history(self, name: str) -> HistoryBuffer:
        """Return the last values of ``name``, oldest first, at most ``window``."""
        if name not in self._series:
            raise KeyError(f"no value was put under {name!r} (names: {sorted(self._series)})")
        return HistoryBuffer(as_floats(self._series[name].values))

    def histories(self) -> dict[str, HistoryBuffer]:
        """Return the last values of each name."""
        return {name: self.history(name) for name in self._series}

    def latest(self) -> dict[str, tuple[float, int]]:
        """Return the latest value and its step for each name that was put."""
        return {n: (float(s.values[-1]), s.step) for n, s in self._series.items()}

    def smoothing_hints(self) -> dict[str, bool]:
        """Return whether writers smooth the values of each name that was put."""
        return {name: series.smooth for name, series in self._series.items()}

    def readings(self) -> dict[str, float]:
        """Return what a writer would show now for each name, including gauges."""
        readings = {name: series.reading() for name, series in self._series.items()}
        return readings | self._read_gauges()

    def unread(self, cursor: Cursor) -> list[Row]:
        """Return the events since the cursor's position in order of step, and advance the cursor.

        Each name contributes one number: its latest reading, at the step it was put.
        """
        rows: dict[int, dict[str, float]] = {}
        for name, series in self._series.items():
            if series.serial > cursor.serial:
                rows.setdefault(series.step, {})[name] = series.reading()
        if self.step > cursor.gauge_step and self._gauges:
            rows.setdefault(self.step, {}).update(self._read_gauges())
        cursor.serial, cursor.gauge_step = self._serial, self.step
        return [Row(step, rows[step]) for step in sorted(rows) if rows[step]]

    def state_dict(self) -> dict[str, Any]:
        """Return the stored numbers as plain values."""
        return {
            "step": self.step,
            "serial": self._serial,
            "series": {
                name: {
                    "smooth": s.smooth,
                    "values": as_floats(s.values),
                    "step": s.step,
                    "serial": s.serial,
                }
                for name, s in self._series.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the stored numbers."""
        self.step, self._serial = state["step"], state["serial"]
        self._series = {
            name: _Series(
                s["smooth"], deque(s["values"], maxlen=self.window), s["step"], s["serial"]
            )
            for name, s in state["series"].items()
        }

    def _read_gauges(self) -> dict[str, float]:
        found = {}
        for name, read in self._gauges.items():
            value = read()
            if value is not None:
                found[name] = float(value)
        return found

    def __enter__(self) -> Self:
        _stack.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _stack.remove(self)


def median(values: Sequence[float]) -> float:
    """Return the median of some values."""
    ordered, half = sorted(values), len(values) // 2  # `statistics` takes 10 ms to import
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2
