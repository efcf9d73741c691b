"""Precision: what runs in fewer bits, and how small gradients survive it."""

from collections.abc import Callable, Collection
from functools import wraps
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch.optim import Optimizer

from stoker.errors import did_you_mean

PrecisionName: TypeAlias = Literal["fp32", "bf16", "fp16"]

_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Autocast for bf16 and fp16; for fp16 also a loss scale that adapts."""

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        if name not in _DTYPES:
            names = get_args(PrecisionName)
            raise ValueError(
                f"precision {name!r} is unknown: expected {', '.join(names)}"
                f"{did_you_mean(str(name), names)}"
            )
        self.name = name
        self._device = device
        self._dtype = _DTYPES[name]
        self.scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None
        self._unscaled: set[int] = set()

    def cast(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as it runs in this precision: itself for fp32."""
        if self._dtype is None:
            return function
        device_type, dtype = self._device.type, self._dtype

        @wraps(function)
        def in_fewer_bits(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(device_type, dtype=dtype):
                return function(*args, **kwargs)

        return in_fewer_bits

    def unscale(self, optimizers: Collection[Optimizer]) -> None:
        """Bring gradients back to their true size, once per update."""
        assert self.scaler is not None
        for optimizer in optimizers:
            if id(optimizer) not in self._unscaled and _has_gradients(optimizer):
                self.scaler.unscale_(optimizer)
                self._unscaled.add(id(optimizer))

    def step(self, optimizers: Collection[Optimizer]) -> bool:
        """Update the parameters; False where an overflow made the scaler skip all of it."""
        assert self.scaler is not None
        stepped: list[object] = []
        for optimizer in optimizers:
            if _has_gradients(optimizer):
                told = optimizer.register_step_post_hook(lambda *_: stepped.append(_))
                self.scaler.step(optimizer)
                told.remove()
                self._unscaled.discard(id(optimizer))
        if not self._unscaled:  # the last of several optimizers that were unscaled together
            self.scaler.update()
        return bool(stepped)

    def adapt(self) -> None:
        """End an update that was not made: the scale goes down if it overflowed."""
        if self.scaler is not None and self._unscaled:
            self.scaler.update()
            self._unscaled.clear()


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])
