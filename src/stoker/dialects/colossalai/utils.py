"""Timers, and loaders for any number of processes."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from stoker.core.timers import Timer as _Watch
from stoker.data import unsharded


class Timer(_Watch):
    """A stop watch that waits for the accelerator before it is read, with a history of readings."""

    has_history = property(lambda self: self.count > 0, doc="Whether a reading was kept.")
    get_elapsed_time = _Watch.elapsed

    def start(self) -> None:
        """Begin to measure."""
        _synchronize()
        super().start()

    def stop(self, keep_in_history: bool = False) -> float:  # type: ignore[override]
        """End the measurement; its seconds."""
        _synchronize()
        return super().stop(keep=keep_in_history)

    def lap(self) -> float:
        """The seconds of the measurement so far ended, and a new one begun."""
        seconds = self.stop()
        super().start()
        return seconds

    def get_history_mean(self) -> float:
        """The mean of the readings that were kept."""
        return self.mean

    def get_history_sum(self) -> float:
        """Their sum."""
        return self.total


class MultiTimer:
    """Timers by name, whatever its case: "Train-step" is "train-step". Off, they do nothing."""

    def __init__(self, on: bool = True) -> None:
        self._on = on
        self._timers: dict[str, tuple[str, Timer]] = {}

    @property
    def is_on(self) -> bool:
        """Whether it measures."""
        return self._on

    def set_status(self, mode: bool) -> None:
        """Switch it on or off."""
        self._on = mode

    def start(self, name: str) -> None:
        """Start the timer of that name, which is made if need be."""
        if self._on:
            self._timers.setdefault(name.lower(), (name, Timer()))[1].start()

    def stop(self, name: str, keep_in_history: bool = False) -> float | None:
        """Stop it; its seconds."""
        return self.get_timer(name).stop(keep_in_history) if self._on else None

    def get_timer(self, name: str) -> Timer:
        """The timer of that name."""
        if name.lower() not in self._timers:
            raise KeyError(f"no timer {name!r} was started (there is {[n for n, _ in self]})")
        return self._timers[name.lower()][1]

    def reset(self, name: str | None = None) -> None:
        """Reset one timer, or all."""
        for timer in [self.get_timer(name)] if name is not None else [t for _, t in self]:
            timer.reset()

    def __iter__(self) -> Iterator[tuple[str, Timer]]:
        return iter(self._timers.values())


def get_dataloader(
    dataset: Dataset[Any],
    shuffle: bool = False,
    seed: int = 1024,
    add_sampler: bool = True,
    drop_last: bool = False,
    pin_memory: bool = False,
    num_workers: int = 0,
    **kwargs: Any,
) -> DataLoader[Any]:
    """A DataLoader with further arguments of torch's, such as ``batch_size``.

    Among several processes each gets its share, unless ``add_sampler`` is False. The order of
    every pass is drawn from ``seed``.
    """
    loader = DataLoader(
        dataset,
        shuffle=shuffle,
        generator=torch.Generator().manual_seed(seed),
        drop_last=drop_last,
        pin_memory=pin_memory,
        num_workers=num_workers,
        **kwargs,
    )
    return loader if add_sampler else unsharded(loader)


def _synchronize() -> None:
    if torch.accelerator.is_available():  # untested: no such device here
        torch.accelerator.synchronize()
