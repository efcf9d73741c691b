"""Timers: one, and a set of them by name."""

from collections.abc import Iterator
from time import perf_counter


class Timer:
    """A stop watch that remembers the last reading, and the sum and number of all it kept."""

    __slots__ = ("_began", "count", "last", "total")

    def __init__(self) -> None:
        self._began: float | None = None
        self.last = 0.0
        self.total = 0.0
        self.count = 0

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped yet."""
        return self._began is not None

    @property
    def mean(self) -> float:
        """The mean of the readings it kept, 0 where there are none."""
        return self.total / self.count if self.count else 0.0

    def start(self) -> None:
        """Begin to measure."""
        self._began = perf_counter()

    def stop(self, *, keep: bool = True) -> float:
        """End the measurement and return its seconds; ``keep=False`` leaves it out of the mean."""
        if self._began is None:
            raise RuntimeError("a timer was stopped that is not running: call start() first")
        self.last = perf_counter() - self._began
        self._began = None
        if keep:
            self.add(self.last)
        return self.last

    def add(self, seconds: float) -> None:
        """Count a reading that was taken elsewhere."""
        self.last = seconds
        self.total += seconds
        self.count += 1

    def elapsed(self) -> float:
        """The last reading; an error while the timer runs, since there is none yet."""
        if self.running:
            raise RuntimeError("a running timer has no reading: call stop() first")
        return self.last

    def reset(self) -> None:
        """Forget all readings."""
        self._began = None
        self.last = self.total = 0.0
        self.count = 0


class MultiTimer:
    """Timers by name, made when first asked for."""

    def __init__(self) -> None:
        self._timers: dict[str, Timer] = {}

    def __getitem__(self, name: str) -> Timer:
        if name not in self._timers:
            self._timers[name] = Timer()
        return self._timers[name]

    def __contains__(self, name: str) -> bool:
        return name in self._timers

    def __iter__(self) -> Iterator[tuple[str, Timer]]:
        return iter(self._timers.items())

    def start(self, name: str) -> None:
        """Start the timer of that name."""
        self[name].start()

    def stop(self, name: str, *, keep: bool = True) -> float:
        """Stop the timer of that name and return its seconds."""
        return self[name].stop(keep=keep)

    def reset(self, name: str | None = None) -> None:
        """Reset one timer, or all."""
        for timer in [self[name]] if name is not None else self._timers.values():
            timer.reset()


class Pace:
    """How fast steps go by, for an estimate of the time that is left."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._began = perf_counter()

    def eta(self, step: int, total: int | None) -> float | None:
        """Seconds until ``total``, None where no step is done or the end is not known."""
        done = step - self._step
        if total is None or done <= 0:
            return None
        return (perf_counter() - self._began) / done * max(0, total - step)
