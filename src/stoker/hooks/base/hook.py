"""`Hook`: code at named points of a run."""

from enum import IntEnum
from typing import Any

from stoker.run import Run


class Priority(IntEnum):
    """The order of hooks at a point: lower numbers first. The names say what a band is for."""

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
            after_train_epoch           the training data is exhausted; no validation yet
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
    """Whether the hook writes files; such hooks take no part in a ``fast_dev_run``."""

    observes: bool = False
    """Whether the hook only observes: it may be added, changed or removed when a run is resumed.

    Other hooks are part of the identity of a run. A hook of yours whose code reads nothing but
    counters and results is recognized as an observer.
    """

    same_on_all_ranks: bool = False
    """Whether the hook makes the same requests at the same steps on all ranks, or none at all.

    A hook that acts at every step and leaves this False costs one collective per step in a job of
    several ranks, because a request of one rank must reach the others before the next step.
    """

    replicated_state: bool = False
    """Whether the state belongs to the model, one for all ranks, instead of to each rank."""

    produces: tuple[str, ...] = ()
    """The results the hook records, such as "val/loss"; "val/" means every validation loader."""

    consumes: tuple[str, ...] = ()
    """The results of other hooks that this one depends on."""

    reads_outputs: tuple[str, ...] = ()
    """Whether the hook reads outputs and targets in ``run.outputs``: in "train", "val" or both.

    With logical ranks these are gathered from all processes only if a hook reads them.
    """

    @property
    def name(self) -> str:
        """The name in messages and saved state; set it to use two hooks of one class."""
        return str(self.__dict__.get("_name", type(self).__name__))

    @name.setter
    def name(self, name: str) -> None:
        self.__dict__["_name"] = name

    def attach(self, run: Run) -> None:
        """Called once, before the first task of the trainer."""

    def before_run(self, run: Run) -> None:
        """Called when ``fit``, ``evaluate`` or ``predict`` begins."""

    def before_train(self, run: Run) -> None:
        """Called when training begins."""

    def before_epoch(self, run: Run) -> None:
        """Called when a pass over the training data begins."""

    def before_step(self, run: Run) -> None:
        """Called with the batches of a step loaded."""

    def after_forward(self, run: Run) -> None:
        """Called after the forward pass of a micro-batch; its output is ``run.outputs[-1]``."""

    def before_update(self, run: Run) -> None:
        """Called with the final gradients: unscaled, not clipped yet, parameters unchanged."""

    def after_step(self, run: Run) -> None:
        """Called when the update is made and counted."""

    def after_train_epoch(self, run: Run) -> None:
        """Called when the training data is exhausted, before validation."""

    def before_val(self, run: Run) -> None:
        """Called before each validation loader, ``run.val_name``."""

    def before_val_step(self, run: Run) -> None:
        """Called with a validation batch loaded."""

    def after_val_step(self, run: Run) -> None:
        """Called after the forward pass of a validation batch."""

    def after_val(self, run: Run) -> None:
        """Called after each validation loader."""

    def after_epoch(self, run: Run) -> None:
        """Called at the end of an epoch, with validation results in ``run.metrics``."""

    def after_train(self, run: Run) -> None:
        """Called when training is over, also after a failure."""

    def before_predict(self, run: Run) -> None:
        """Called when a prediction begins."""

    def before_predict_step(self, run: Run) -> None:
        """Called with a batch to predict loaded."""

    def after_predict_step(self, run: Run) -> None:
        """Called when a batch is predicted; see ``run.outputs[-1].outputs``."""

    def after_predict(self, run: Run) -> None:
        """Called when the prediction is over."""

    def on_exception(self, run: Run) -> None:
        """Called when the run failed with ``run.error``."""

    def after_run(self, run: Run) -> None:
        """Called when ``fit``, ``evaluate`` or ``predict`` ends, also after a failure."""

    def info(self) -> dict[str, Any]:
        """Return plain values that can be read from a checkpoint without loading it."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a restart: tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


POINTS: tuple[str, ...] = tuple(
    name
    for name, value in vars(Hook).items()
    if name.startswith(("attach", "before_", "after_", "on_"))
)
"""The names of all points, in the order of the picture in `Hook`."""


def overrides(hook: Hook, point: str) -> bool:
    """Return whether a hook acts at a point: by its class, or by an attribute of its own."""
    return point in vars(hook) or getattr(type(hook), point) is not getattr(Hook, point)
