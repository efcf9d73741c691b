"""Random numbers that differ between processes which otherwise draw the same ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class RankDraws:
    """Lets each process draw its own random numbers for a part of a forward pass.

    Processes that share a layer or a sequence draw the same numbers. Where each has other heads or
    positions, the masks of a dropout would repeat.

    Args:
        rank: the number of this process among those that draw the same numbers.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._before: list[tuple[Any, torch.Tensor]] = []

    def begin(self, device: torch.device) -> None:
        """Draw own numbers from here on, if that has not begun."""
        if self._before:
            return
        seed = int(torch.randint(2**31, ())) + self._rank
        self._before = _states(device)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 90 µs more
        if device.type != "cpu":
            torch.get_device_module(device).manual_seed(seed)

    def end(self) -> None:
        """Draw the same numbers as the other processes again."""
        for generator, state in self._before:
            generator.set_rng_state(state)
        self.forget()

    def forget(self) -> None:
        """Forget a part that has begun and will not end, such as one that is computed again."""
        self._before = []


@contextmanager
def own_draws(rank: int, device: torch.device) -> Iterator[None]:
    """Within this context, this process draws other random numbers than those of other ranks.

    They follow from the next number that all would draw, and from the rank. If nothing is drawn,
    the generators are as they were.

    Args:
        rank: the number of this process among those that draw the same numbers.
        device: where the numbers are drawn, besides the CPU.
    """
    before = _states(device)
    draws = RankDraws(rank)
    draws.begin(device)
    begun = _states(device)
    try:
        yield
    finally:
        drew = any(
            not torch.equal(a, b) for (_, a), (_, b) in zip(begun, _states(device), strict=True)
        )
        draws.end()
        if not drew:
            for generator, state in before:
                generator.set_rng_state(state)


def _states(device: torch.device) -> list[tuple[Any, torch.Tensor]]:
    generators = [torch] if device.type == "cpu" else [torch, torch.get_device_module(device)]
    return [(one, one.get_rng_state()) for one in generators]


def has_dropout(module: nn.Module) -> bool:
    """Return whether a module, or one in it, may drop values in training."""
    return any(
        "drop" in name and isinstance(value, float) and value > 0
        for part in module.modules()
        for name, value in (*vars(part).items(), ("dropout", getattr(part, "p", 0.0)))
    )
