"""Precision: what runs in fewer bits, and how small gradients survive it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection
from functools import cache, wraps
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch.optim import Optimizer

from stoker.core.errors import did_you_mean

PrecisionName: TypeAlias = Literal["fp32", "bf16", "fp16"]

_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

_CAP = "ONEDNN_MAX_CPU_ISA"
_TRY = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"


class Precision:
    """Autocast for bf16 and fp16; for fp16 also a loss scale that adapts."""

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        if name not in _DTYPES:
            names = get_args(PrecisionName)
            raise ValueError(
                f"precision {name!r} is unknown: expected {', '.join(names)}"
                f"{did_you_mean(str(name), names)}"
            )
        if name == "bf16" and device.type == "cpu":
            _check_processor()
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


@cache
def _check_processor() -> None:
    """Refuse bf16 where the processor announces tiles (AMX) that it does not have.

    Some virtual machines do that. Torch believes it, and the process would end without a word.
    Whether it is so shows only when it is tried, in another process.
    """
    if _CAP in os.environ or not _announces_tiles():
        return
    tried = subprocess.run([sys.executable, "-c", _TRY], capture_output=True, check=False)
    if tried.returncode == -signal.SIGILL:
        raise ValueError(
            "precision 'bf16' would end this process: its processor, or the virtual machine, "
            f"announces AMX and does not have it; set {_CAP}=AVX512_CORE_BF16 in the environment"
        )


def _announces_tiles() -> bool:
    facts = Path("/proc/cpuinfo")
    return facts.exists() and "amx_bf16" in facts.read_text()
