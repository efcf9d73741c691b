"""How batches are read: what goes into the model, what comes out of it, and where the loss is."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stoker.core.tree import describe
from stoker.core.types import Batch, Output
from stoker.engine.engine import Engine


def split(batch: Batch) -> tuple[Any, Any]:
    """A batch as ``(inputs, targets)``; targets are None where it has none."""
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


def call(engine: Engine, inputs: Any, *more: Any) -> Any:
    """The model on inputs: a tensor as one argument, a tuple as several, a dict by name."""
    try:
        if isinstance(inputs, Tensor):
            return engine(inputs, *more)
        if isinstance(inputs, Mapping):
            return engine(*more, **inputs)
        if isinstance(inputs, tuple | list):
            return engine(*inputs, *more)
        return engine(inputs, *more)
    except (TypeError, RuntimeError) as error:
        given = ", ".join(describe(part) for part in (inputs, *more))
        error.add_note(f"{type(engine.model).__name__} was called with {given}")
        if more and engine.criterion is None:
            error.add_note(
                "the engine has no criterion, so the model got the targets too: give Engine a "
                "criterion unless the model returns its own loss"
            )
        raise


def supervised(engine: Engine, batch: Batch) -> Output:
    """Model, then criterion: ``criterion(model(inputs), targets)``."""
    inputs, targets = batch if batch.__class__ is tuple and len(batch) == 2 else split(batch)
    outputs = call(engine, inputs)
    try:
        loss = engine.criterion(outputs, targets)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        _explain(error, engine.given_criterion, batch, outputs, targets)
        raise
    return Output(loss, outputs, targets)


def _explain(error: Exception, criterion: Any, batch: Batch, outputs: Any, targets: Any) -> None:
    """Say what a criterion that failed was given and, where known, what it expects."""
    name = getattr(criterion, "__name__", type(criterion).__name__)
    if targets is None:
        raise ValueError(
            f"the batch, {describe(batch)}, has no targets for {name}: expected a pair "
            "(inputs, targets); leave the criterion out if the model returns its own loss"
        ) from error
    fault = fault_of_targets(criterion, outputs, targets)
    if fault is not None:
        raise ValueError(f"criterion {name} got {fault}") from error
    error.add_note(
        f"criterion {name} got outputs {describe(outputs)} and targets {describe(targets)}"
    )


def self_judged(engine: Engine, batch: Batch) -> Output:
    """A model that returns its own loss: a scalar, a dict of losses, or an object with ``.loss``.

    Targets, where the batch has them, are its last argument. Without a loss in what it returns
    (many such models give predictions in evaluation mode) the output has none.
    """
    inputs, targets = split(batch)
    outputs = call(engine, inputs) if targets is None else call(engine, inputs, targets)
    loss, scalars = find_loss(outputs)
    if isinstance(batch, Mapping):
        targets = batch.get("labels", batch.get("targets"))  # for metrics
    return Output(loss, outputs, targets, scalars=scalars)


def find_loss(outputs: Any) -> tuple[Tensor | None, dict[str, Tensor]]:
    """The loss in what a model or a step returned, and the losses it is the sum of, by name."""
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


def fault_of_targets(criterion: Any, outputs: Any, targets: Any) -> str | None:
    """What is wrong with the targets for one of torch's own losses, None where nothing shows."""
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
