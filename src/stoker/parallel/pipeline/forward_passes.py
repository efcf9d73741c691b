"""Forward passes through pipeline stages: to infer shapes, and to evaluate."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as c10d
from torch import Tensor

from stoker.core.seed import preserve_rng
from stoker.parallel.pipeline.stages import Stages

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of one call of the model."""
Shapes: TypeAlias = list[list[tuple[torch.Size, torch.dtype]]]
"""The shapes and dtypes that each stage returns for one micro-batch."""


@torch.no_grad()
def infer_shapes(stages: Stages, calls: Sequence[Call], device: torch.device) -> Shapes:
    """Return what each stage returns for one micro-batch, by running each stage once.

    All processes must call it. Buffers and random number generators are restored afterwards.

    Args:
        stages: the pipeline.
        calls: the model's arguments, of which the first are used; empty except on the first stage.
        device: where the stages are.
    """
    shapes: Shapes = []
    for index in range(stages.count):
        found = None
        if index in stages.local:
            stage = stages.local[index]
            args, kwargs = (zeros(shapes[-1], device), {}) if index else calls[0]
            buffers = [(buffer, buffer.clone()) for buffer in stage.buffers()]
            with preserve_rng():
                found = [(value.shape, value.dtype) for value in as_tuple(stage(*args, **kwargs))]
            for buffer, before in buffers:
                buffer.copy_(before)
        received = [found]
        source = index % stages.processes
        c10d.broadcast_object_list(received, group=stages.group, group_src=source)
        assert received[0] is not None
        shapes.append(received[0])
    return shapes


@torch.no_grad()
def forward_only(
    stages: Stages, shapes: Shapes, calls: Sequence[Call], count: int, device: torch.device
) -> list[Any]:
    """Run micro-batches through the stages one by one; return the outputs on the last stage.

    Args:
        stages: the pipeline.
        shapes: what the stages return for one micro-batch.
        calls: the model's arguments for each micro-batch; empty except on the first stage.
        count: the number of micro-batches.
        device: where the stages are.
    """
    before, after = (stages.rank - 1) % stages.processes, (stages.rank + 1) % stages.processes
    outputs, sent = [], []
    for number in range(count):
        for index, stage in stages.local.items():
            args, kwargs = (zeros(shapes[index - 1], device), {}) if index else calls[number]
            if index:
                for value in args:
                    c10d.recv(value, group=stages.group, group_src=before)
            output = stage(*args, **kwargs)
            if index == stages.count - 1:
                outputs.append(output)
                continue
            for value in as_tuple(output):
                value = value.contiguous()  # noqa: PLW2901
                sent.append((c10d.isend(value, group=stages.group, group_dst=after), value))
    for work, _ in sent:
        assert work is not None
        work.wait()
    return outputs


def as_tuple(output: Any) -> tuple[Tensor, ...]:
    """Return the output of a stage as a tuple."""
    return output if isinstance(output, tuple) else (output,)


def zeros(shapes: Sequence[tuple[torch.Size, torch.dtype]], device: Any) -> tuple[Tensor, ...]:
    """Return zero tensors of these shapes."""
    return tuple(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in shapes)
