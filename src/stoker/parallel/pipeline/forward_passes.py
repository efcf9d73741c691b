"""Forward passes through pipeline stages: to infer shapes, and to evaluate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as c10d
from torch import Tensor

from stoker.core.seed import preserve_rng
from stoker.core.tree import tensors
from stoker.parallel.pipeline.stages import Answers, Call, Stages

Shape: TypeAlias = tuple[torch.Size, torch.dtype]


@dataclass(frozen=True)
class Shapes:
    """What the stages return for one micro-batch.

    Args:
        outputs: the shapes and dtypes of the tensors that each stage returns.
        answers: what the parts of the model return, for stages that do not run them.
    """

    outputs: list[list[Shape]]
    answers: Answers


@torch.no_grad()
def infer_shapes(stages: Stages, calls: Sequence[Call], device: torch.device) -> Shapes:
    """Return what each stage returns for one micro-batch, by running each stage once.

    All processes must call it. Buffers and random number generators are restored afterwards.

    Args:
        stages: the pipeline.
        calls: the model's arguments, of which the first are used; empty where no stage needs them.
        device: where the stages are.
    """
    found = Shapes([], {})
    for index in range(stages.count):
        probed: Any = None
        failure: Exception | None = None
        if index in stages.local:
            try:
                probed = _probe(stages, index, found, calls, device)
            except Exception as error:  # the other processes wait
                probed, failure = str(error), error
        shared = [probed]
        source = index % stages.processes
        c10d.broadcast_object_list(shared, group=stages.group, group_src=source)
        if failure is not None:
            raise failure
        if isinstance(shared[0], str):
            raise RuntimeError(f"pipeline stage {index} failed in another process: {shared[0]}")
        shapes, learned = shared[0]
        found.outputs.append(shapes)
        found.answers.update(learned)
    return found


def _probe(
    stages: Stages, index: int, found: Shapes, calls: Sequence[Call], device: torch.device
) -> tuple[list[Shape], Answers]:
    """Run one stage; return the shapes of its output and what later stages need to know."""
    received = zeros(found.outputs[-1], device) if index else ()
    buffers = [(buffer, buffer.clone()) for buffer in stages.model.buffers()]
    with preserve_rng():
        output, learned = stages.local[index].probe(
            received, calls[0] if calls else None, found.answers
        )
    for buffer, before in buffers:
        buffer.copy_(before)
    return [(value.shape, value.dtype) for value in tensors(output)], learned


@torch.no_grad()
def forward_only(
    stages: Stages, shapes: Shapes, calls: Sequence[Call], count: int, device: torch.device
) -> list[Any]:
    """Run micro-batches through the stages one by one; return the outputs on the last stage.

    Args:
        stages: the pipeline.
        shapes: what the stages return for one micro-batch.
        calls: the model's arguments for each micro-batch; empty where no stage needs them.
        count: the number of micro-batches.
        device: where the stages are.
    """
    before, after = (stages.rank - 1) % stages.processes, (stages.rank + 1) % stages.processes
    outputs, sent = [], []
    for number in range(count):
        for index, stage in stages.local.items():
            received = zeros(shapes.outputs[index - 1], device) if index else ()
            for value in received:
                c10d.recv(value, group=stages.group, group_src=before)
            call = calls[number] if calls else None
            args, kwargs = stage.arguments(received, call, shapes.answers)
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
