"""`RetrySchedule`: run a step again, in smaller parts, if memory runs out."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from stoker.core.log import get_logger
from stoker.core.out_of_memory import free_memory, is_out_of_memory
from stoker.core.seed import random_state, set_random_state
from stoker.core.tree import batch_size, map_tensors
from stoker.core.types import Batch
from stoker.engine.engine import Engine
from stoker.engine.schedule import Forward, PlainSchedule, StepContext
from stoker.engine.target_weight import has_ignored, warn_about_ignored

_log = get_logger()


class RetrySchedule:
    """Runs a step again if memory runs out: once as it was, then in ever smaller micro-batches.

        trainer = Trainer(engine, schedule=RetrySchedule())

    Random numbers, buffers and gradients are those of the beginning of the step each time, and
    each micro-batch is weighted by its samples or targets, so that the step trains like the one
    that did not fit. The size that fits is kept for later steps, and is saved in checkpoints.
    Processes of a layout with ``replicate`` retry independently of each other; they synchronize
    gradients when all micro-batches of a step are done.

    Args:
        limit: the largest number of samples to begin with; None for complete batches.
    """

    def __init__(self, limit: int | None = None) -> None:
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ValueError(f"limit must be an integer of at least 1, or None, got {limit!r}")
        self.limit = limit
        self._plain = PlainSchedule()
        self._reported = False

    def run(self, context: StepContext) -> None:
        """Run forward and backward, batch by batch, until no attempt runs out of memory."""
        engine = context.engine
        start = _StartOfStep(engine)
        failed_before = False
        while (error := self._attempt(context)) is not None:
            start.restore()
            if context.restart is not None:
                context.restart()
            free_memory()
            if failed_before:
                self._lower(context, error)
            failed_before = True
        engine.parallel_model.reduce_gradients()

    def forward_only(self, engine: Engine, batch: Batch, forward: Forward) -> Any:
        """Return ``forward(engine, batch)``."""
        return self._plain.forward_only(engine, batch, forward)

    def state_dict(self) -> dict[str, Any]:
        """Return the size that fits."""
        return {"limit": self.limit}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the size that fits."""
        self.limit = state["limit"]

    def _attempt(self, context: StepContext) -> str | None:
        """Run the step; return the error if memory runs out, without what it refers to."""
        try:
            with context.engine.parallel_model.sync(enabled=False):
                self._plain.run(_divided(context, self.limit))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return f"{type(error).__name__}: {error}"
        return None

    def _lower(self, context: StepContext, error: str) -> None:
        """Halve the size of micro-batches.

        Raises:
            RuntimeError: a single sample does not fit, or the batches cannot be divided.
        """
        largest = max(map(batch_size, _divided(context, self.limit).batches))
        if largest == 1:
            raise RuntimeError(f"not even a micro-batch of 1 sample fits into memory ({error})")
        self.limit = (largest + 1) // 2
        after = max(map(batch_size, _divided(context, self.limit).batches))
        if after >= largest:
            raise RuntimeError(
                f"memory has run out, and a batch of type {type(context.batches[0]).__name__} "
                f"cannot be divided into smaller ones ({error})"
            )
        _log.warning(
            f"memory has run out: steps are computed in micro-batches of {self.limit} samples from "
            "now on",
            ranks=None,
        )
        if not self._reported:
            self._reported = True
            _report_differences(context)


class _StartOfStep:
    """What a forward pass changes, as it was when a step began."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._random = random_state()
        self._buffers = [(one, one.detach().clone()) for one in _changing(engine.model)]

    @torch.no_grad()
    def restore(self) -> None:
        set_random_state(self._random)
        for buffer, value in self._buffers:
            buffer.copy_(value)
        criterion = self._engine.given_criterion
        parts = [self._engine.model, *([criterion] if isinstance(criterion, nn.Module) else [])]
        for parameter in (parameter for part in parts for parameter in part.parameters()):
            parameter.grad = None


def _changing(model: nn.Module) -> Iterable[Tensor]:
    """Return the buffers that a forward pass in training may change."""
    return (
        buffer
        for module in model.modules()
        if module.training
        for buffer in module.buffers(recurse=False)
    )


def _divided(context: StepContext, limit: int | None) -> StepContext:
    """Return the step with micro-batches of at most ``limit`` samples."""
    if limit is None or all(batch_size(batch) <= limit for batch in context.batches):
        return context
    batches: list[Batch] = []
    sizes: list[float] = []
    for batch, size in zip(context.batches, context.sizes, strict=True):
        samples = batch_size(batch)
        parts = [batch] if samples <= limit else _parts(batch, samples, limit)
        for part in parts:
            weight = context.weigh(part) if context.weigh is not None and size else None
            batches.append(part)
            sizes.append(size * batch_size(part) / samples if weight is None else weight)
    return replace(context, batches=batches, sizes=sizes)


def _parts(batch: Batch, samples: int, limit: int) -> list[Batch]:
    """Return parts of a batch of about the same size, or the batch if it cannot be divided."""
    count = -(-samples // limit)
    edges = [samples * number // count for number in range(count + 1)]

    def part(start: int, end: int) -> Batch:
        return map_tensors(lambda t: t[start:end] if t.ndim and len(t) == samples else t, batch)

    found = [part(start, end) for start, end in itertools.pairwise(edges)]
    expected = [end - start for start, end in itertools.pairwise(edges)]
    return found if list(map(batch_size, found)) == expected else [batch]


def _report_differences(context: StepContext) -> None:
    """Log what makes a step in smaller micro-batches differ by more than rounding."""
    engine = context.engine
    kinds = [type(one) for one in engine.model.modules() if one.training]
    if any(issubclass(kind, nn.modules.batchnorm._BatchNorm) for kind in kinds):
        _log.warning(
            "batch norms compute their statistics over each micro-batch, so smaller ones train "
            "differently"
        )
    if any(issubclass(kind, nn.modules.dropout._DropoutNd) for kind in kinds):
        _log.warning("dropout draws other random numbers for smaller micro-batches")
    if context.weigh is None and not engine.loss_is_sum and has_ignored(context.batches):
        warn_about_ignored(engine.parallel_model.data_ranks, 2)
