"""`BaseHook`: code at thirteen points of training, and how Stoker calls it."""

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
    "before_test_epoch": ("before_val", 1),  # when all hooks have seen before_test
    "before_test_iter": ("before_val_step", 0),
    "after_test_iter": ("after_val_step", 0),
    "after_test_epoch": ("after_val", -1),  # before any hook sees after_test
    "after_test": ("after_val", 0),
    "after_train": ("after_train", 0),
}
"""Where each point is in Stoker's loop, and whether it comes before or after others there."""

_ROUND = 1_000_000


class BaseHook:
    """Code at points of training; lower `priority` runs earlier, equal ones in the order given.

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

    Every method takes the trainer first. In the older style a hook is made with its trainer,
    ``BaseHook(trainer, priority)``, and its methods leave it out; both are understood. What must
    survive a restart goes into ``state_dict`` and ``load_state_dict``, if there are such.
    """

    priority: int = 10
    timed: bool = False
    """Whether it needs the trainer's timer to run."""

    def __init__(self, *trainer_and_priority: Any) -> None:
        *trainer, self.priority = trainer_and_priority or (self.priority,)
        if trainer:
            self.trainer = trainer[0]

    def after_hook_is_attached(self, trainer: Any) -> None:
        """All hooks are there, in order."""

    def before_train(self, trainer: Any) -> None:
        """Training begins."""

    def before_train_epoch(self, trainer: Any) -> None:
        """An epoch begins."""

    def before_train_iter(self, trainer: Any) -> None:
        """A step begins."""

    def after_train_iter(self, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """The update is made; ``trainer.cur_step`` is still the number of this step, from 0."""

    def after_train_epoch(self, trainer: Any) -> None:
        """The epoch's training is over, its test has not begun."""

    def before_test(self, trainer: Any) -> None:
        """A test begins."""

    def before_test_epoch(self, trainer: Any) -> None:
        """Its data is taken up."""

    def before_test_iter(self, trainer: Any) -> None:
        """A test batch is there."""

    def after_test_iter(self, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """A test batch went forward."""

    def after_test_epoch(self, trainer: Any) -> None:
        """The data is done."""

    def after_test(self, trainer: Any) -> None:
        """The test is over."""

    def after_train(self, trainer: Any) -> None:
        """Training is over, well or not."""

    def init_runner_states(self, trainer: Any, key: str, val: Any) -> None:
        """Set ``trainer.states[key]``, if nobody has."""
        trainer.states.setdefault(key, val)

    def natives(self, name: str, trainer: Any) -> list[Hook]:
        """The hooks of Stoker that call this one."""
        main = Adapter(
            self, name, self.priority, same_on_all_ranks=True
        )  # such hooks ask nothing of a run
        others: list[Hook] = []
        for point in overridden(self, BaseHook, _PLACES):
            place, turn = _PLACES[point]
            hook = main
            if turn:
                turned = self.priority + turn * _ROUND
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
