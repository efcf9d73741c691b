"""Optimizers and learning-rate schedules for scripts that build their own."""

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from stoker.core.errors import did_you_mean
from stoker.dialects.rates import schedule


def _polynomial(done: float, base: float, lr_end: float, power: float) -> float:
    if base <= lr_end:
        raise ValueError(f"lr_end must be smaller than the initial rate {base}, got {lr_end}")
    return float((base - lr_end) * (1 - done) ** power + lr_end) / base


def _restarts(done: float, base: float, num_cycles: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * (num_cycles * done % 1))) if done < 1 else 0.0


_STEPS = {"num_warmup_steps": ..., "num_training_steps": ...}
_SHAPES: dict[str, tuple[str, dict[str, Any], Callable[..., float]]] = {
    "constant": ("", {}, lambda done, base: 1.0),
    "constant_with_warmup": ("constant", {"num_warmup_steps": ...}, lambda done, base: 1.0),
    "linear": ("linear", _STEPS, lambda done, base: 1 - done),
    "cosine": (
        "cosine",
        {**_STEPS, "num_cycles": 0.5},
        lambda done, base, num_cycles: 0.5 * (1 + math.cos(2 * math.pi * num_cycles * done)),
    ),
    "cosine_with_restarts": (
        "cosine_with_hard_restarts", {**_STEPS, "num_cycles": 1}, _restarts,
    ),
    "polynomial": (
        "polynomial_decay", {**_STEPS, "lr_end": 1e-7, "power": 1.0}, _polynomial,
    ),
}  # fmt: skip
"""By name in a config: the name of the function, its options, and the factor after the warm-up."""


def _with_warmup(shape: Callable[..., float]) -> Callable[..., float]:
    def factor(
        step: int, base: float, num_warmup_steps: int = 0, num_training_steps: int = 0, **more: Any
    ) -> float:
        """Raise the rate from 0 during the warm-up, then change it as the name says."""
        if step < num_warmup_steps:
            return step / num_warmup_steps
        left = max(1, num_training_steps - num_warmup_steps)
        return shape(min(1.0, (step - num_warmup_steps) / left), base, **more)

    return factor


TYPE_TO_SCHEDULER_FUNCTION: dict[str, Any] = {}
"""The schedules by their names in a config."""

for _key, (_name, _options, _shape) in _SHAPES.items():
    for _form in ("get_{}_schedule{}", "configure_{}_scheduler{}"):
        _full = _form.format(_name or "constant", "_with_warmup" if _name else "")
        globals()[_full] = schedule(_full, _with_warmup(_shape), **_options, last_epoch=-1)
        TYPE_TO_SCHEDULER_FUNCTION.setdefault(_key, globals()[_full])

scheduler_list = list(_SHAPES)
"""The names of the schedules."""


def check_scheduler(scheduler_type: str) -> bool:
    """Return whether there is a schedule of this name."""
    return scheduler_type in scheduler_list


def get_warmup_steps(num_training_steps: int, warmup_steps: int, warmup_ratio: float) -> int:
    """Return the number of warm-up steps: ``warmup_steps``, or a share of all steps if it is 0."""
    return warmup_steps if warmup_steps > 0 else math.ceil(num_training_steps * warmup_ratio)


def get_scheduler(name: Any, optimizer: Any, **steps: int | None) -> Any:
    """Return a schedule by name or `SchedulerType`, with the steps that it needs."""
    name = getattr(name, "value", name)
    if name not in _SHAPES:
        raise ValueError(f"there is no schedule {name!r}{did_you_mean(str(name), scheduler_list)}")
    needed = [option for option, value in _SHAPES[name][1].items() if value is ...]
    missing = [option for option in needed if steps.get(option) is None]
    if missing:
        raise ValueError(f"the schedule {name!r} needs {' and '.join(missing)}")
    return TYPE_TO_SCHEDULER_FUNCTION[name](optimizer, **{one: steps[one] for one in needed})


class AdamW(torch.optim.AdamW):
    """torch's AdamW with the defaults of Towhee."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
    ) -> None:
        if not correct_bias:
            raise ValueError("correct_bias is False, but torch's AdamW always corrects the bias")
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


def __getattr__(name: str) -> Any:
    if name != "Adafactor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module("transformers.optimization").Adafactor
    except (ImportError, RuntimeError) as error:  # RuntimeError: another torch's torchvision
        raise ImportError(
            f"Adafactor is that of the package 'transformers' ({error}): pip install transformers"
        ) from error
