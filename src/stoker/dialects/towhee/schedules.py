"""Learning-rate schedules as functions of an optimizer, for scripts that build their own."""

import math
from typing import Any

from stoker.core.errors import did_you_mean
from stoker.dialects.rates import schedule


def _warm_up(step: int, num_warmup_steps: int) -> float | None:
    """Return the factor during the warm-up, None after it."""
    return step / max(1, num_warmup_steps) if step < num_warmup_steps else None


def _progress(step: int, num_warmup_steps: int, num_training_steps: int) -> float:
    done = (step - num_warmup_steps) / max(1, num_training_steps - num_warmup_steps)
    return min(1.0, done)


def constant(step: int, base: float) -> float:
    """Keep the rate constant."""
    return 1.0


def constant_with_warmup(step: int, base: float, num_warmup_steps: int) -> float:
    """Raise the rate from 0, then keep it constant."""
    rising = _warm_up(step, num_warmup_steps)
    return 1.0 if rising is None else rising


def linear(step: int, base: float, num_warmup_steps: int, num_training_steps: int) -> float:
    """Raise the rate from 0, then decay it linearly to 0."""
    rising = _warm_up(step, num_warmup_steps)
    return 1 - _progress(step, num_warmup_steps, num_training_steps) if rising is None else rising


def cosine(
    step: int, base: float, num_warmup_steps: int, num_training_steps: int, num_cycles: float
) -> float:
    """Raise the rate from 0, then let it follow ``num_cycles`` waves of a cosine."""
    rising = _warm_up(step, num_warmup_steps)
    progress = _progress(step, num_warmup_steps, num_training_steps)
    return 0.5 * (1 + math.cos(2 * math.pi * num_cycles * progress)) if rising is None else rising


def cosine_with_restarts(
    step: int, base: float, num_warmup_steps: int, num_training_steps: int, num_cycles: int
) -> float:
    """Raise the rate from 0, then decay it along half a cosine, ``num_cycles`` times."""
    rising = _warm_up(step, num_warmup_steps)
    progress = _progress(step, num_warmup_steps, num_training_steps)
    if rising is not None or progress == 1:
        return rising or 0.0
    return 0.5 * (1 + math.cos(math.pi * (num_cycles * progress % 1)))


def polynomial(
    step: int,
    base: float,
    num_warmup_steps: int,
    num_training_steps: int,
    lr_end: float,
    power: float,
) -> float:
    """Raise the rate from 0, then decay it by a power of the remaining steps to ``lr_end``."""
    if base <= lr_end:
        raise ValueError(f"lr_end must be smaller than the initial rate {base}, got {lr_end}")
    rising = _warm_up(step, num_warmup_steps)
    left = 1 - _progress(step, num_warmup_steps, num_training_steps)
    return ((base - lr_end) * left**power + lr_end) / base if rising is None else rising


_LAST = {"last_epoch": -1}
_STEPS = {"num_warmup_steps": ..., "num_training_steps": ...}
_OPTIONS: dict[Any, tuple[str, dict[str, Any]]] = {
    constant: ("constant_schedule", {}),
    constant_with_warmup: ("constant_schedule_with_warmup", {"num_warmup_steps": ...}),
    linear: ("linear_schedule_with_warmup", _STEPS),
    cosine: ("cosine_schedule_with_warmup", {**_STEPS, "num_cycles": 0.5}),
    cosine_with_restarts: (
        "cosine_with_hard_restarts_schedule_with_warmup",
        {**_STEPS, "num_cycles": 1},
    ),
    polynomial: (
        "polynomial_decay_schedule_with_warmup",
        {**_STEPS, "lr_end": 1e-7, "power": 1.0},
    ),
}
TYPE_TO_SCHEDULER_FUNCTION: dict[str, Any] = {}
"""The schedules by the names that a config has for them."""

for _factor, (_name, _options) in _OPTIONS.items():
    _made = schedule(f"get_{_name}", _factor, **_options, **_LAST)
    _other = f"configure_{_name.replace('schedule', 'scheduler')}"
    TYPE_TO_SCHEDULER_FUNCTION[_factor.__name__] = globals()[_made.__name__] = _made
    globals()[_other] = schedule(_other, _factor, **_options, **_LAST)

scheduler_list = list(TYPE_TO_SCHEDULER_FUNCTION)
"""The names of the schedules."""


def check_scheduler(scheduler_type: str) -> bool:
    """Return whether there is a schedule of this name."""
    return scheduler_type in scheduler_list


def get_warmup_steps(num_training_steps: int, warmup_steps: int, warmup_ratio: float) -> int:
    """Return the number of warm-up steps: ``warmup_steps``, or a share of all steps if it is 0."""
    return warmup_steps if warmup_steps > 0 else math.ceil(num_training_steps * warmup_ratio)


def get_scheduler(
    name: Any,
    optimizer: Any,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
) -> Any:
    """Return the schedule of this name, which may be a `SchedulerType`."""
    name = getattr(name, "value", name)
    if name not in TYPE_TO_SCHEDULER_FUNCTION:
        raise ValueError(f"there is no schedule {name!r}{did_you_mean(str(name), scheduler_list)}")
    given = {"num_warmup_steps": num_warmup_steps, "num_training_steps": num_training_steps}
    needed = [option for option, value in _needed(name) if value is ...]
    missing = [option for option in needed if given[option] is None]
    if missing:
        raise ValueError(f"the schedule {name!r} needs {' and '.join(missing)}")
    return TYPE_TO_SCHEDULER_FUNCTION[name](optimizer, **{one: given[one] for one in needed})


def _needed(name: str) -> Any:
    return next(o for factor, (_, o) in _OPTIONS.items() if factor.__name__ == name).items()
