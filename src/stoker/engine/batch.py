"""Read batches: call the model with the inputs, and find the loss."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stoker.core.tree import describe
from stoker.core.types import Batch, Output
from stoker.engine.engine import Engine


def split_inputs(batch: Batch) -> tuple[Any, Any]:
    """Return a batch as ``(inputs, targets)``; targets are None if the batch has none."""
    if isinstance(batch, tuple | list):
        if len(batch) == 2:
            return batch[0], batch[1]
        if len(batch) == 1:
            return batch[0], None
        raise ValueError(
            f"a batch of {len(batch)} items, {describe(batch)}: expected a pair (inputs, targets); "
            "group several inputs as ((a, b), y), or pass a step that reads such batches"
        )
    return batch, None


def call_model(engine: Engine, inputs: Any, *more: Any) -> Any:
    """Call the model: a tensor is one argument, a tuple several, a dict keyword arguments."""
    try:
        if isinstance(inputs, Tensor):
            return engine(inputs, *more)
        if isinstance(inputs, Mapping):
            return engine(*more, **inputs)
        if isinstance(inputs, tuple | list):
            return engine(*inputs, *more)
        return engine(inputs, *more)
    except (TypeError, RuntimeError) as error:
        arguments = ", ".join(describe(argument) for argument in (inputs, *more))
        error.add_note(f"{type(engine.model).__name__} was called with {arguments}")
        if more and engine.criterion is None:
            error.add_note(
                "the engine has no criterion, so the model got the targets too: pass a criterion "
                "to Engine unless the model returns its own loss"
            )
        raise


_TENSORS = frozenset({Tensor, nn.Parameter})
"""What a loss usually is, which is quicker to find out than whether it is a mapping."""


def forward_with_criterion(engine: Engine, batch: Batch) -> Output:
    """Compute ``criterion(model(inputs), targets)``: a loss, or a dict of losses to be added."""
    inputs, targets = batch if batch.__class__ is tuple and len(batch) == 2 else split_inputs(batch)
    outputs = call_model(engine, inputs)
    try:
        loss = engine.criterion(outputs, targets)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        _explain(error, engine.given_criterion, batch, outputs, targets)
        raise
    if loss.__class__ not in _TENSORS and isinstance(loss, Mapping):
        loss, losses = _sum_of_losses(engine.given_criterion, loss)
        return Output(loss, outputs, targets, scalars=losses)
    return Output(loss, outputs, targets)


def _sum_of_losses(criterion: Any, found: Mapping[Any, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the sum of the losses that a criterion returned by name, and each of them."""
    loss, losses = (None, {}) if "loss" in found else find_loss(found)
    if loss is None:
        name = getattr(criterion, "__name__", type(criterion).__name__)
        raise ValueError(
            f"criterion {name} returned {describe(found)}: expected a loss, or a dict of losses "
            "to be added (one number each, none named 'loss')"
        )
    return loss, losses


def _explain(error: Exception, criterion: Any, batch: Batch, outputs: Any, targets: Any) -> None:
    """Add the arguments of a criterion that failed to its error and, if known, what it expects."""
    name = getattr(criterion, "__name__", type(criterion).__name__)
    if targets is None:
        raise ValueError(
            f"the batch, {describe(batch)}, has no targets for {name}: expected a pair "
            "(inputs, targets); leave the criterion out if the model returns its own loss"
        ) from error
    problem = target_error(criterion, outputs, targets)
    if problem is not None:
        raise ValueError(f"criterion {name} got {problem}") from error
    error.add_note(
        f"criterion {name} got outputs {describe(outputs)} and targets {describe(targets)}"
    )


def forward_with_model_loss(engine: Engine, batch: Batch) -> Output:
    """Run a model that returns a loss: a scalar, a dict of losses, or an object with ``.loss``.

    Targets, if the batch has them, are the last argument. The output has no loss if the model
    returns none: many such models return predictions in evaluation mode.
    """
    inputs, targets = split_inputs(batch)
    outputs = call_model(engine, inputs) if targets is None else call_model(engine, inputs, targets)
    loss, scalars = find_loss(outputs)
    if isinstance(batch, Mapping):
        targets = batch.get("labels", batch.get("targets"))  # for metrics
    return Output(loss, outputs, targets, scalars=scalars)


def find_loss(outputs: Any) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Return the loss in what a model or step returned, and the named losses it is the sum of."""
    if isinstance(outputs, Tensor):
        return (outputs if outputs.ndim == 0 else None), {}
    if isinstance(outputs, Mapping):
        if "loss" in outputs:
            return outputs["loss"], {}
        losses = {str(k): v for k, v in outputs.items() if isinstance(v, Tensor) and v.ndim == 0}
        if losses and len(losses) == len(outputs):
            total = sum(losses.values())
            assert isinstance(total, Tensor)
            return total, {name: value.detach() for name, value in losses.items()}
        return None, {}
    return getattr(outputs, "loss", None), {}


_CLASS_INDICES = (nn.CrossEntropyLoss, nn.NLLLoss)
_SAME_SHAPE = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
)


def target_error(criterion: Any, outputs: Any, targets: Any) -> str | None:
    """Return what is wrong with the targets for one of torch's losses; None if nothing is found."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return None
    dtype = str(targets.dtype).removeprefix("torch.")
    takes_indices = isinstance(criterion, _CLASS_INDICES) and targets.shape != outputs.shape
    if takes_indices and targets.dtype not in (torch.int64, torch.uint8):
        return f"targets of dtype {dtype}, expected int64 class indices: use targets.long()"
    if isinstance(criterion, _SAME_SHAPE):
        if targets.shape != outputs.shape:
            return (
                f"targets of shape {list(targets.shape)} for outputs of shape "
                f"{list(outputs.shape)}, expected the same shape: they would be broadcast"
            )
        takes_floats = isinstance(criterion, nn.BCELoss | nn.BCEWithLogitsLoss)
        if takes_floats and not targets.dtype.is_floating_point:
            return f"targets of dtype {dtype}, expected floating point: use targets.float()"
    return None
