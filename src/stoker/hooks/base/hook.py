"""`Hook`: code at named points of a run."""

from enum import IntEnum
from typing import Any

from stoker.run import Run


class Priority(IntEnum):
    """Who goes first at a point: lower numbers. The names say what a band is for."""

    MEASURE = 10
    ADJUST = 30
    NORMAL = 50
    EVALUATE = 60
    SAVE = 70
    REPORT = 90


class Hook:
    """Code at named points of a run. Override the points you need; each takes the `Run`.

        attach                          once, before anything runs
        before_run                      fit, evaluate or predict begins
          before_train
            before_epoch
              before_step  …per micro-batch: forward, after_forward, backward…
                           before_update  …clip, optimizer, LR…  after_step
            after_train_epoch           the pass over the training data is over
              before_val   before_val_step …forward… after_val_step   after_val
                                        per validation loader; also between steps when due
            after_epoch                 validation results are visible
          after_train                   also after a failure
          before_predict   before_predict_step …predict… after_predict_step   after_predict
        on_exception                    before the after_… of a failed run; see run.error
        after_run                       always

    Hooks run in ascending `priority`; equal ones in the order they were given. A point that a
    class does not override costs nothing. State that must survive a restart goes into
    `state_dict`, under the hook's `name`, which is unique in a run.
    """

    priority: int = Priority.NORMAL

    writes: bool = False
    """Whether it leaves files behind; such hooks stay out of a ``fast_dev_run``."""

    same_on_all_ranks: bool = False
    """Whether what it asks of a run at a step it asks in all processes alike, if anything at all.

    One that does not say so has several processes talk to each other after every step.
    """

    replicated_state: bool = False
    """Whether its state is of the model, one for all processes, and not of each by itself."""

    produces: tuple[str, ...] = ()
    """The results it makes, such as "val/loss"; "val/" stands for every validation loader."""

    consumes: tuple[str, ...] = ()
    """The results of others that it acts on."""

    @property
    def name(self) -> str:
        """What the hook is called in messages and saved state; set it to have two of a class."""
        return str(self.__dict__.get("_name", type(self).__name__))

    @name.setter
    def name(self, name: str) -> None:
        self.__dict__["_name"] = name

    def attach(self, run: Run) -> None:
        """The hook has been added to a trainer."""

    def before_run(self, run: Run) -> None:
        """``fit``, ``evaluate`` or ``predict`` begins."""

    def before_train(self, run: Run) -> None:
        """Training begins."""

    def before_epoch(self, run: Run) -> None:
        """A pass over the training data begins."""

    def before_step(self, run: Run) -> None:
        """The batches of a step are there."""

    def after_forward(self, run: Run) -> None:
        """A micro-batch went forward; its output is ``run.outputs[-1]``."""

    def before_update(self, run: Run) -> None:
        """Gradients are final and of true size, not clipped yet; parameters are unchanged."""

    def after_step(self, run: Run) -> None:
        """The update is made and counted."""

    def after_train_epoch(self, run: Run) -> None:
        """The pass over the training data is over; validation has not run."""

    def before_val(self, run: Run) -> None:
        """A validation loader is taken up: ``run.val_name``."""

    def before_val_step(self, run: Run) -> None:
        """A validation batch is there."""

    def after_val_step(self, run: Run) -> None:
        """A validation batch went forward."""

    def after_val(self, run: Run) -> None:
        """A validation loader is done."""

    def after_epoch(self, run: Run) -> None:
        """The epoch is over, validation results are visible."""

    def after_train(self, run: Run) -> None:
        """Training is over, well or not."""

    def before_predict(self, run: Run) -> None:
        """A prediction begins."""

    def before_predict_step(self, run: Run) -> None:
        """A batch to predict is there."""

    def after_predict_step(self, run: Run) -> None:
        """A batch is predicted; see ``run.outputs[-1].outputs``."""

    def after_predict(self, run: Run) -> None:
        """The prediction is over."""

    def on_exception(self, run: Run) -> None:
        """The run failed with ``run.error``."""

    def after_run(self, run: Run) -> None:
        """``fit``, ``evaluate`` or ``predict`` ends, well or not."""

    def info(self) -> dict[str, Any]:
        """Plain values that can be read of a checkpoint without loading it."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""


POINTS: tuple[str, ...] = tuple(
    name
    for name, value in vars(Hook).items()
    if name.startswith(("attach", "before_", "after_", "on_"))
)
"""The names of all points, in the order of the picture in `Hook`."""
