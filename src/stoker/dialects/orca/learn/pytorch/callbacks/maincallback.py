"""`MainCallback`: the owner of forward, backward and learning rate."""

from collections.abc import Iterable
from inspect import signature
from typing import Any

from stoker.dialects.orca.learn.pytorch.callbacks.base import Callback
from stoker.dialects.orca.learn.pytorch.torch_runner import TorchRunner
from stoker.engine.batch import call_model, find_loss, target_error


class MainCallback(Callback):
    """The definition of an update. A run has exactly one; override the parts that differ.

    A forward sets ``runner.output`` and ``runner.loss``, and ``runner.target`` where metrics are to
    see another target than the last part of the batch.
    """

    def on_iter_forward(self, runner: TorchRunner) -> None:
        """Run model and loss on a batch ``(*features, target)`` of training or validation.

        Without a criterion the model gets what it takes of the batch, and may return its own loss.
        """
        batch, criterion = runner.batch, runner.criterion
        if criterion is None or not isinstance(batch, tuple | list):
            runner.output = call_model(runner.engine, taken(runner, batch))
            loss, _ = find_loss(runner.output)
            if loss is not None:
                runner.loss = loss
            return
        features, runner.target = batch if len(batch) == 2 else (tuple(batch[:-1]), batch[-1])
        output = runner.output = call_model(runner.engine, features)
        outputs = output if isinstance(output, tuple | list) else (output,)
        targets = runner.target if isinstance(runner.target, tuple | list) else (runner.target,)
        try:
            runner.loss = criterion(*outputs, *targets)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            fault = target_error(runner.engine.given_criterion, output, runner.target)
            if fault is not None:
                error.add_note(f"the loss got {fault}")
            raise

    def on_train_forward(self, runner: TorchRunner) -> None:
        """Run the forward pass of training."""
        self.on_iter_forward(runner)

    def on_val_forward(self, runner: TorchRunner) -> None:
        """Run the forward pass of validation."""
        self.on_iter_forward(runner)

    def on_pred_forward(self, runner: TorchRunner) -> None:
        """Run the forward pass of prediction on all parts of the batch that the model takes."""
        runner.output = call_model(runner.engine, taken(runner, runner.batch))

    def on_iter_backward(self, runner: TorchRunner) -> None:
        """Reset the gradients, run backward, and update."""
        engine = runner.engine
        engine.zero_grad()
        engine.backward(runner.loss)
        engine.update()

    def on_lr_adjust(self, runner: TorchRunner) -> Any:
        """Step the scheduler, if there is one, after each epoch or update."""
        if runner.scheduler is not None:
            runner.engine.adjust_lr()


def taken(runner: TorchRunner, batch: Any) -> Any:
    """Return the model's inputs: all parts of a batch, or those before the target."""
    if isinstance(batch, tuple | list):
        try:
            signature(runner.engine.model.forward).bind(*batch)
        except TypeError:
            return batch[0] if len(batch) == 2 else tuple(batch[:-1])
    return batch


MainCallBack = MainCallback
"""An alternative spelling."""


def make_only_mainCallback(  # noqa: N802
    callbacks: Iterable[Any] | None,
) -> tuple[MainCallback, list[Callback]]:
    """Return the owner of the step, and a new list of callbacks that starts with it."""
    given = list(callbacks or ())
    for one in given:
        if not isinstance(one, Callback):
            kind = (
                f"the class {one.__name__}" if isinstance(one, type) else f"a {type(one).__name__}"
            )
            raise TypeError(f"callbacks hold {kind}, expected a Callback object")
    owners = [one for one in given if isinstance(one, MainCallback)]
    if len(owners) > 1:
        names = ", ".join(type(one).__name__ for one in owners)
        raise ValueError(
            f"{len(owners)} owners of the step were given ({names}), expected exactly one "
            "MainCallback: put what they do into one"
        )
    owner = owners[0] if owners else MainCallback()
    return owner, [owner, *(one for one in given if one is not owner)]
