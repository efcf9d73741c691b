"""A schedule over the length of a run, when a run is resumed with another length."""

import warnings
from collections.abc import Mapping
from typing import Any

from stoker.core.log import get_logger
from stoker.run import Run

_log = get_logger()


class ScheduleLength:
    """Keeps the length of schedules that follow the length of the run, whatever was saved.

    A scheduler's ``state_dict`` contains its length. After ``epochs`` was changed, the length that
    the script or the config gave it counts, and the learning rate jumps there.

    Args:
        run: before its state is restored.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._given = {name: dict(vars(one)) for name, one in run.engine.lr_schedulers.items()}

    def restore(self, steps: int | None, epochs: int | None) -> None:
        """Set the lengths again after a state was restored.

        Args:
            steps: the length of the run that saved the state, in updates; None if unknown.
            epochs: the same in epochs.
        """
        run = self._run
        lengths = {steps: run.total_steps, epochs: run.max_epochs}
        lengths = {then: now for then, now in lengths.items() if then and now and then != now}
        for name, scheduler in run.engine.lr_schedulers.items() if lengths else ():
            before = _rates(scheduler)
            _stretch(scheduler, self._given[name], lengths)
            after = _rates(scheduler)
            if before != after or hasattr(scheduler, "_schedulers"):
                which = f"{type(scheduler).__name__}{f' of {name}' if name else ''}"
                jump = f"jumps from {before[0]:.4g} to {after[0]:.4g}"
                _log.warning(
                    f"the run was started for {steps or epochs} steps and is resumed for "
                    f"{run.total_steps or run.max_epochs}: the learning rate of {which} "
                    f"{jump if before != after else 'may jump'} at step {run.step}"
                )


def _stretch(scheduler: Any, given: Mapping[str, Any], lengths: Mapping[Any, Any]) -> None:
    """Set the length that a scheduler was given, and its learning rate at that length."""
    state = vars(scheduler)
    stretched = {
        key: given[key]
        for key, value in state.items()
        if type(value) is int and value in lengths and given.get(key) == lengths[value]
    }
    by_function = hasattr(scheduler, "lr_lambdas")
    if not stretched and not by_function:
        return
    of_phases = "_schedule_phases" in given  # OneCycleLR
    state.update(stretched | ({"_schedule_phases": given["_schedule_phases"]} if of_phases else {}))
    rate = getattr(scheduler, "_get_closed_form_lr", None)
    if rate is None and (of_phases or by_function):
        rate = scheduler.get_lr
    if rate is None:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # get_lr is meant to be called in step
        rates = rate()
    for group, one in zip(scheduler.optimizer.param_groups, rates, strict=True):
        group["lr"] = one
    scheduler._last_lr = [*rates]


def _rates(scheduler: Any) -> list[float]:
    return [float(group["lr"]) for group in scheduler.optimizer.param_groups]
