"""Timers and data loaders."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from stoker.core.timers import Timer as _Watch
from stoker.data import unsharded


class Timer(_Watch):
    """A timer that synchronizes with the accelerator and keeps a history."""

    has_history = property(lambda self: self.count > 0, doc="Whether the history has an entry.")
    get_elapsed_time = _Watch.elapsed

    def start(self) -> None:
        """Start the timer."""
        _synchronize()
        super().start()

    def stop(self, keep_in_history: bool = False) -> float:  # type: ignore[override]
        """Stop the timer and return its seconds."""
        _synchronize()
        return super().stop(keep=keep_in_history)

    def lap(self) -> float:
        """Return the elapsed seconds and restart the timer."""
        seconds = self.stop()
        super().start()
        return seconds

    def get_history_mean(self) -> float:
        """Return the mean of the history."""
        return self.mean

    def get_history_sum(self) -> float:
        """Return the sum of the history."""
        return self.total


class MultiTimer:
    """Timers by case-insensitive name, which can be switched off together."""

    def __init__(self, on: bool = True) -> None:
        self._on = on
        self._timers: dict[str, tuple[str, Timer]] = {}

    @property
    def is_on(self) -> bool:
        """Whether the timers are on."""
        return self._on

    def set_status(self, mode: bool) -> None:
        """Switch the timers on or off."""
        self._on = mode

    def start(self, name: str) -> None:
        """Start the timer of that name, and create it if needed."""
        if self._on:
            self._timers.setdefault(name.lower(), (name, Timer()))[1].start()

    def stop(self, name: str, keep_in_history: bool = False) -> float | None:
        """Stop the timer of that name and return its seconds."""
        return self.get_timer(name).stop(keep_in_history) if self._on else None

    def get_timer(self, name: str) -> Timer:
        """Return the timer of that name."""
        if name.lower() not in self._timers:
            raise KeyError(f"no timer {name!r} was started (timers: {[n for n, _ in self]})")
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
    """Return a DataLoader; ``kwargs`` are further arguments such as ``batch_size``.

    With several processes each reads its shard, unless ``add_sampler`` is False. ``seed``
    determines the order of every pass.
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
    if torch.accelerator.is_available():  # untested: CI has no accelerator
        torch.accelerator.synchronize()
