"""`EventStorage`: the one place where numbers of a run are put, from wherever they arise."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from stoker.core.tree import as_floats
from stoker.core.types import Scalar

_stack: list["EventStorage"] = []


def get_event_storage() -> "EventStorage":
    """The storage of the run in progress, for code far from the trainer, such as a model.

    >>> get_event_storage().put_scalar("attention/entropy", entropy)    # doctest: +SKIP
    """
    if not _stack:
        raise RuntimeError(
            "get_event_storage() was called outside a run: it works within fit(), evaluate() and "
            "predict(), or within 'with EventStorage():'"
        )
    return _stack[-1]


@dataclass(slots=True)
class Row:
    """Numbers of one step, ready to be written."""

    step: int
    scalars: dict[str, float]


@dataclass(slots=True)
class Cursor:
    """How far a writer has read: pass it to `EventStorage.unread`, which moves it on."""

    serial: int = 0
    gauge_step: int = -1


@dataclass(slots=True)
class _Series:
    """The last values of one name."""

    smooth: bool
    values: deque[Scalar]
    step: int = 0
    serial: int = 0

    def reading(self) -> float:
        """What a writer shows: the median of the last values, or the latest as it is."""
        if not self.smooth:
            return float(self.values[-1])
        return _median(as_floats(self.values))


@dataclass(eq=False)
class EventStorage:
    """Scalars by name and step, with bounded memory however long the run.

    Two ways in. `put_scalar` takes a value now: of a smoothed name writers show the median of
    the last ``window`` values, of another the latest. `gauge` takes a function that is asked only
    when a writer reads. Values may be tensors: nothing is read back from a device before a writer
    needs it.
    """

    window: int = 20
    step: int = 0
    _series: dict[str, _Series] = field(default_factory=dict, repr=False)
    _gauges: dict[str, Callable[[], Scalar | None]] = field(default_factory=dict, repr=False)
    _serial: int = field(default=0, repr=False)
    _prefix: str = field(default="", repr=False)

    def put_scalar(self, name: str, value: Scalar, smoothing_hint: bool = True) -> None:
        """Put one number under ``name`` at the current step.

        The hint says whether writers smooth it; it belongs to the name and cannot change.
        """
        if self._prefix:
            name = self._prefix + name
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = _Series(smoothing_hint, deque(maxlen=self.window))
        elif series.smooth is not smoothing_hint:
            raise ValueError(
                f"{name!r} was put with smoothing_hint={series.smooth} and now with "
                f"{smoothing_hint}: a name has one hint"
            )
        self._serial += 1
        series.serial = self._serial
        series.step = self.step
        series.values.append(value.detach() if isinstance(value, Tensor) else value)

    def put_scalars(self, *, smoothing_hint: bool = True, **scalars: Scalar) -> None:
        """Put several numbers at once."""
        for name, value in scalars.items():
            self.put_scalar(name, value, smoothing_hint)

    def gauge(self, name: str, read: Callable[[], Scalar | None]) -> None:
        """Let ``name`` be read from a function when a writer asks; None means no value now."""
        self._gauges[name] = read

    @contextmanager
    def name_scope(self, prefix: str) -> Iterator[None]:
        """Within it, names that are put begin with ``prefix/``."""
        before = self._prefix
        self._prefix = f"{before}{prefix}/"
        try:
            yield
        finally:
            self._prefix = before

    def history(self, name: str) -> list[float]:
        """The last values put under ``name``, oldest first, at most ``window``."""
        if name not in self._series:
            raise KeyError(f"nothing was put under {name!r}; there is {sorted(self._series)}")
        return as_floats(self._series[name].values)

    def latest(self) -> dict[str, tuple[float, int]]:
        """Each name that was put, with its latest value and the step of it."""
        return {n: (float(s.values[-1]), s.step) for n, s in self._series.items()}

    def readings(self) -> dict[str, float]:
        """Each name with what a writer would show now, gauges included."""
        shown = {name: series.reading() for name, series in self._series.items()}
        return shown | self._read_gauges()

    def unread(self, cursor: Cursor) -> list[Row]:
        """What came since the cursor was last here, as rows in order of their step.

        A name gives one number, its latest (smoothed) reading, under the step it was put at.
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
        """The numbers it holds, as plain values."""
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
        """Take back what `state_dict` gave; whether it was read, the cursors of readers say."""
        self.step, self._serial = state["step"], state["serial"]
        self._series = {
            name: _Series(
                s["smooth"], deque(s["values"], maxlen=self.window), s["step"], s["serial"]
            )
            for name, s in state["series"].items()
        }

    def _read_gauges(self) -> dict[str, float]:
        read = {name: read() for name, read in self._gauges.items()}
        return {name: float(value) for name, value in read.items() if value is not None}

    def __enter__(self) -> Self:
        _stack.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _stack.remove(self)


def _median(values: list[float]) -> float:
    ordered, half = sorted(values), len(values) // 2  # `statistics` takes 10 ms to import
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2
