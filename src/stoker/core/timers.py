"""Timers, alone and by name."""

from collections.abc import Callable, Iterator
from functools import wraps
from time import perf_counter
from typing import Any, ParamSpec, Self, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Timer:
    """A stopwatch with its last reading, and the sum and count of all readings."""

    __slots__ = ("_began", "count", "last", "total")

    def __init__(self) -> None:
        self._began: float | None = None
        self.last = 0.0
        self.total = 0.0
        self.count = 0

    @property
    def running(self) -> bool:
        """Whether the timer is running."""
        return self._began is not None

    @property
    def mean(self) -> float:
        """The mean of the readings, 0 if there are none."""
        return self.total / self.count if self.count else 0.0

    def start(self) -> None:
        """Start the timer."""
        self._began = perf_counter()

    def stop(self, *, keep: bool = True) -> float:
        """Stop the timer and return the seconds; ``keep=False`` leaves them out of the mean."""
        if self._began is None:
            raise RuntimeError("the timer is not running: call start() first")
        self.last = perf_counter() - self._began
        self._began = None
        if keep:
            self.add(self.last)
        return self.last

    def __enter__(self) -> Self:
        """Start the timer; the end of the block stops it."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def add(self, seconds: float) -> None:
        """Add a reading measured elsewhere."""
        self.last = seconds
        self.total += seconds
        self.count += 1

    def elapsed(self) -> float:
        """Return the last reading; raise an error while the timer is running."""
        if self.running:
            raise RuntimeError("the timer is running: call stop() first")
        return self.last

    def reset(self) -> None:
        """Forget all readings."""
        self._began = None
        self.last = self.total = 0.0
        self.count = 0


class MultiTimer:
    """Timers by name, created on first use.

    Args:
        kind: makes a timer.
        key: names with the same key are one timer, which keeps the first name.
        on: False to measure nothing until the attribute is set.
    """

    def __init__(
        self,
        kind: Callable[[], Any] = Timer,
        key: Callable[[str], str] = str,
        *,
        on: bool = True,
    ) -> None:
        self._kind, self._key, self.on = kind, key, on
        self._timers: dict[str, tuple[str, Any]] = {}

    def __getitem__(self, name: str) -> Any:
        key = self._key(name)
        if key not in self._timers:
            self._timers[key] = (name, self._kind())
        return self._timers[key][1]

    def __contains__(self, name: str) -> bool:
        return self._key(name) in self._timers

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self._timers.values())

    def start(self, name: str) -> None:
        """Start the timer of that name."""
        if self.on:
            self[name].start()

    def stop(self, name: str, *, keep: bool = True) -> float:
        """Stop the timer of that name and return its seconds."""
        seconds: float = self[name].stop(keep=keep) if self.on else 0.0
        return seconds

    def reset(self, name: str | None = None) -> None:
        """Reset one timer, or all."""
        for timer in [self[name]] if name is not None else [timer for _, timer in self]:
            timer.reset()


class Pace:
    """The pace of steps, to estimate the time left."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._began = perf_counter()

    def eta(self, step: int, total: int | None) -> float | None:
        """Return the seconds until ``total``, None if no step is done or the end is unknown."""
        done = step - self._step
        if total is None or done <= 0:
            return None
        return (perf_counter() - self._began) / done * max(0, total - step)


guards: dict[str, Timer] = {}
"""What the guarantees of all runs of this process have cost, by name."""


def timed_guard(
    name: str, clock: Callable[[], float] = perf_counter
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Add the time of each call to the timer of a guarantee.

    Use one name per thread; in the background, `thread_time` leaves out the time spent waiting.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        timer = guards.setdefault(name, Timer())

        @wraps(function)
        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            began = clock()
            try:
                return function(*args, **kwargs)
            finally:
                timer.add(clock() - began)

        return timed

    return decorate
