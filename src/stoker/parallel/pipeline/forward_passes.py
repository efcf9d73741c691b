"""Single passes through the stages of a pipeline: to learn shapes, and to look at a model."""

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
"""For every stage what it returns for one micro-batch."""


@torch.no_grad()
def shapes_of(stages: Stages, calls: Sequence[Call], device: torch.device) -> Shapes:
    """What every stage returns for one micro-batch, found by running each once. All must call it.

    Afterwards buffers and random numbers are as before.

    Args:
        stages: the pipeline.
        calls: what the model is called with, the first counts; empty but on the first stage.
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
                found = [(value.shape, value.dtype) for value in values(stage(*args, **kwargs))]
            for buffer, before in buffers:
                buffer.copy_(before)
        held = [found]
        c10d.broadcast_object_list(held, group=stages.group, group_src=index % stages.processes)
        assert held[0] is not None
        shapes.append(held[0])
    return shapes


@torch.no_grad()
def forward_only(
    stages: Stages, shapes: Shapes, calls: Sequence[Call], count: int, device: torch.device
) -> list[Any]:
    """Micro-batches through the stages, one after another; the outputs, where the last stage is.

    Args:
        stages: the pipeline.
        shapes: what the stages return for one of them.
        calls: what the model is called with, by micro-batch; empty but on the first stage.
        count: how many micro-batches.
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
            for value in values(output):
                value = value.contiguous()  # noqa: PLW2901
                sent.append((c10d.isend(value, group=stages.group, group_dst=after), value))
    for work, _ in sent:
        assert work is not None
        work.wait()
    return outputs


def values(output: Any) -> tuple[Tensor, ...]:
    """What a stage returned, as a tuple."""
    return output if isinstance(output, tuple) else (output,)


def zeros(shapes: Sequence[tuple[torch.Size, torch.dtype]], device: Any) -> tuple[Tensor, ...]:
    """Tensors of these shapes."""
    return tuple(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in shapes)
