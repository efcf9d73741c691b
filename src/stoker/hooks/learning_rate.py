"""Hooks about the learning rate: `LR` reports it, `Plateau` lowers it."""

from functools import partial
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from stoker.hooks.base.hook import Hook, Priority
from stoker.hooks.base.monitor import Monitor, ResultHook
from stoker.run import Run


class LR(Hook):
    """Report ``lr``, the learning rate of each update.

    The value is that of the parameter group with the most parameters. Named optimizers are
    reported as ``lr/<name>``. The engine steps the LR scheduler; this hook only reports the rate.
    """

    observes = True
    priority = Priority.REPORT  # after hooks that set the rate before a step
    same_on_all_ranks = True
    produces = ("lr",)

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        self._group: dict[str, int] = {}

    def before_train(self, run: Run) -> None:
        """Select the parameter groups to report."""
        for name, optimizer in run.engine.optimizers.items():
            sizes = [sum(p.numel() for p in g["params"]) for g in optimizer.param_groups]
            self._group[name] = sizes.index(max(sizes))
            if "lr" not in optimizer.param_groups[self._group[name]]:
                raise ValueError(
                    f"{type(optimizer).__name__} has no 'lr' in its parameter groups, so hooks.LR "
                    "cannot report a learning rate: set one (defaults={'lr': …}), or remove the "
                    "hook"
                )
            key = f"lr/{name}" if name else "lr"
            run.events.gauge(key, partial(self._used.get, name))

    def before_step(self, run: Run) -> None:
        """Record the rates that this step uses."""
        for name, optimizer in run.engine.optimizers.items():
            self._used[name] = float(optimizer.param_groups[self._group[name]]["lr"])

    def state_dict(self) -> dict[str, Any]:
        """Return the rates of the last step."""
        return {"used": dict(self._used)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the rates of the last step."""
        self._used.clear()
        self._used.update(state["used"])


class Plateau(ResultHook):
    """Lower the learning rate when a result stops improving.

        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
        hooks=[*hooks.default(), hooks.Plateau(scheduler, "val/loss")]

    Args:
        scheduler: The scheduler to step with each new result. Do not also pass it to the `Engine`.
        monitor: The result to pass to it.
    """

    def __init__(self, scheduler: ReduceLROnPlateau, monitor: str = "val/loss") -> None:
        if not isinstance(scheduler, ReduceLROnPlateau):
            raise TypeError(
                f"scheduler is a {type(scheduler).__name__}, expected a ReduceLROnPlateau"
            )
        super().__init__(Monitor(monitor, scheduler.mode))
        self.scheduler = scheduler

    def on_result(self, run: Run, value: float) -> None:
        """Step the scheduler."""
        self.scheduler.step(value)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler."""
        return {"scheduler": self.scheduler.state_dict(), "monitor": self.monitor.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the scheduler."""
        self.scheduler.load_state_dict(state["scheduler"])
        self.monitor.load_state_dict(state["monitor"])
