"""`BaseHook`: the base class of hooks, and its translation to Stoker."""

import inspect
from typing import Any

from stoker import Hook, Run
from stoker.dialects.adapter import Adapter, overridden

_PLACES = {
    "after_hook_is_attached": ("attach", 0),
    "before_train": ("before_train", 0),
    "before_train_epoch": ("before_epoch", 0),
    "before_train_iter": ("before_step", 0),
    "after_train_iter": ("after_step", 0),
    "after_train_epoch": ("after_train_epoch", 0),
    "before_test": ("before_val", 0),
    "before_test_epoch": ("before_val", 1),  # after before_test of all hooks
    "before_test_iter": ("before_val_step", 0),
    "after_test_iter": ("after_val_step", 0),
    "after_test_epoch": ("after_val", -1),  # before after_test of any hook
    "after_test": ("after_val", 0),
    "after_train": ("after_train", 0),
}
"""The point of Stoker for each point, and whether it runs before or after others there."""

_OFFSET = 1_000_000


class BaseHook:
    """Code at points of training; hooks with a lower `priority` run earlier.

        after_hook_is_attached
        before_train
          before_train_epoch
            before_train_iter    after_train_iter(trainer, output, label, loss)
          after_train_epoch
          before_test
            before_test_epoch
              before_test_iter   after_test_iter(trainer, output, label, loss)
            after_test_epoch
          after_test
        after_train

    Every method takes the trainer first. In the older style a hook is created with its trainer,
    ``BaseHook(trainer, priority)``, and its methods do not take it; both are supported. Define
    ``state_dict`` and ``load_state_dict`` for state that must be restored on resume.
    """

    priority: int = 10
    timed: bool = False
    """Whether the hook needs the trainer's timer."""

    def __init__(self, *trainer_and_priority: Any) -> None:
        *trainer, self.priority = trainer_and_priority or (self.priority,)
        if trainer:
            self.trainer = trainer[0]

    def after_hook_is_attached(self, trainer: Any) -> None:
        """Run once, after all hooks are attached."""

    def before_train(self, trainer: Any) -> None:
        """Run before training."""

    def before_train_epoch(self, trainer: Any) -> None:
        """Run before each epoch."""

    def before_train_iter(self, trainer: Any) -> None:
        """Run before each step."""

    def after_train_iter(self, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """Run after each step; ``trainer.cur_step`` is still the index of this step."""

    def after_train_epoch(self, trainer: Any) -> None:
        """Run after the training of an epoch, before its test."""

    def before_test(self, trainer: Any) -> None:
        """Run before a test."""

    def before_test_epoch(self, trainer: Any) -> None:
        """Run before the batches of a test."""

    def before_test_iter(self, trainer: Any) -> None:
        """Run before each test batch."""

    def after_test_iter(self, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """Run after each test batch."""

    def after_test_epoch(self, trainer: Any) -> None:
        """Run after the batches of a test."""

    def after_test(self, trainer: Any) -> None:
        """Run after a test."""

    def after_train(self, trainer: Any) -> None:
        """Run after training, even if it failed."""

    def init_runner_states(self, trainer: Any, key: str, val: Any) -> None:
        """Set ``trainer.states[key]`` if it is not set."""
        trainer.states.setdefault(key, val)

    def natives(self, name: str, trainer: Any) -> list[Hook]:
        """Return the Stoker hooks that call this one."""
        # These hooks make no requests, so ranks need not agree on any.
        main = Adapter(self, name, self.priority, same_on_all_ranks=True)
        others: list[Hook] = []
        for point in overridden(self, BaseHook, _PLACES):
            place, turn = _PLACES[point]
            hook = main
            if turn:
                turned = self.priority + turn * _OFFSET
                hook = Adapter(None, f"{name}.{point}", turned, same_on_all_ranks=True)
                others.append(hook)
            hook.place(point, place, _call(point, getattr(self, point), trainer))
        return [main, *others]


def _call(point: str, method: Any, trainer: Any) -> Any:
    after_iter = point in ("after_train_iter", "after_test_iter")
    first = (trainer,) if _takes(method, 4 if after_iter else 1) else ()
    if not after_iter:
        return lambda run: method(*first)
    late = point == "after_train_iter"

    def call(run: Run) -> None:
        trainer.late = late and run.updated
        method(*first, *trainer.seen(run))
        trainer.late = False

    return call


def _takes(method: Any, count: int) -> bool:
    try:
        inspect.signature(method).bind(*range(count))
    except TypeError:
        return False
    return True
