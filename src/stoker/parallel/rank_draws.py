"""Random numbers that differ between processes which otherwise draw the same ones."""

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
        generators = [torch] if device.type == "cpu" else [torch, torch.get_device_module(device)]
        self._before = [(one, one.get_rng_state()) for one in generators]
        torch.manual_seed(seed)

    def end(self) -> None:
        """Draw the same numbers as the other processes again."""
        for generator, state in self._before:
            generator.set_rng_state(state)
        self.forget()

    def forget(self) -> None:
        """Forget a part that has begun and will not end, such as one that is computed again."""
        self._before = []


def has_dropout(module: nn.Module) -> bool:
    """Return whether a module, or one in it, may drop values in training."""
    return any(
        "drop" in name and isinstance(value, float) and value > 0
        for part in module.modules()
        for name, value in (*vars(part).items(), ("dropout", getattr(part, "p", 0.0)))
    )
