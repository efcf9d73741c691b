"""Mixed precision: autocast and loss scaling."""

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
from stoker.core.foreign_words import precision_of

PrecisionName: TypeAlias = Literal["fp32", "bf16", "fp16"]

_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

_ISA_LIMIT = "ONEDNN_MAX_CPU_ISA"
_PROBE = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"


class Precision:
    """Autocast for bf16 and fp16, with dynamic loss scaling for fp16."""

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        if name not in _DTYPES:
            names, ours = get_args(PrecisionName), precision_of(name) or str(name)
            raise ValueError(
                f"precision {name!r} is unknown: expected {', '.join(names)}"
                f"{did_you_mean(ours, [ours] if ours in names else names)}"
            )
        if name == "bf16" and device.type == "cpu":
            _check_processor()
        self.name = name
        self._device = device
        self._dtype = _DTYPES[name]
        self.scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None
        self._unscaled: set[int] = set()

    def cast(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with autocast; unchanged for fp32."""
        if self._dtype is None:
            return function
        device_type, dtype = self._device.type, self._dtype

        @wraps(function)
        def autocast(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(device_type, dtype=dtype):
                return function(*args, **kwargs)

        return autocast

    def unscale(self, optimizers: Collection[Optimizer]) -> None:
        """Divide gradients by the loss scale, once per update."""
        assert self.scaler is not None
        for optimizer in optimizers:
            if id(optimizer) not in self._unscaled and _has_gradients(optimizer):
                self.scaler.unscale_(optimizer)
                self._unscaled.add(id(optimizer))

    def step(self, optimizers: Collection[Optimizer]) -> bool:
        """Update the parameters; return False if an overflow made the scaler skip the update."""
        assert self.scaler is not None
        stepped: list[object] = []
        for optimizer in optimizers:
            if _has_gradients(optimizer):
                handle = optimizer.register_step_post_hook(lambda *_: stepped.append(_))
                self.scaler.step(optimizer)
                handle.remove()
                self._unscaled.discard(id(optimizer))
        if not self._unscaled:  # the last of several optimizers that were unscaled together
            self.scaler.update()
        return bool(stepped)

    def skip_update(self) -> None:
        """End an update that is not made; the scale decreases if there was an overflow."""
        if self.scaler is not None and self._unscaled:
            self.scaler.update()
            self._unscaled.clear()


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


@cache
def _check_processor() -> None:
    """Reject bf16 on CPUs that report AMX but cannot execute it.

    Some virtual machines do that, and torch then crashes with SIGILL. Only trying it, in another
    process, shows it.
    """
    if _ISA_LIMIT in os.environ or not _reports_amx():
        return
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, check=False)
    if probe.returncode == -signal.SIGILL:
        raise ValueError(
            "precision 'bf16' would crash this process: the CPU, or the virtual machine, reports "
            f"AMX but cannot execute it; set {_ISA_LIMIT}=AVX512_CORE_BF16 in the environment"
        )


def _reports_amx() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "amx_bf16" in cpuinfo.read_text()
