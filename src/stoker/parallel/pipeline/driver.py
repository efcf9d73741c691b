"""Run pipeline stages with `torch.distributed.pipelining`.

Torch gets only the numbers of the micro-batches, as the input of the first stage and the target of
the last one, and this module looks up the micro-batch of a number. So a batch can be anything that
can be cut, and torch neither cuts batches nor runs model and loss once to learn shapes.

This module is slow to import, so import it where a pipeline runs.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributed import pipelining

from stoker.parallel.pipeline.forward_passes import Shape, Shapes, as_tuple, zeros
from stoker.parallel.pipeline.stage_plan import ScheduleKind
from stoker.parallel.pipeline.stages import Call, Stage, Stages

LossFunction: TypeAlias = Callable[[Any, int], Tensor]
"""Computes the loss from the model's output and the number of the micro-batch."""

_SCHEDULES: dict[str, Any] = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "zero-bubble": pipelining.ScheduleInterleavedZeroBubble,
}
_LOOPED: Any = pipelining.ScheduleLoopedBFS  # gpipe with several stages per process

# when a part of a model fails, torch would log its entire schedule
logging.getLogger(pipelining.schedules.__name__).setLevel(logging.CRITICAL)


class PipelineDriver:
    """Runs a fixed number of micro-batches of one shape forward and backward, repeatedly."""

    def __init__(
        self,
        kind: ScheduleKind,
        stages: Stages,
        shapes: Shapes,
        microbatches: int,
        device: torch.device,
    ) -> None:
        self._numbers = torch.arange(microbatches)
        self._loss: LossFunction
        self._step = _StepData(shapes)
        self._splits_backward = kind == "zero-bubble"
        self._stages = [
            _TorchStage(
                stage, stages, shapes, device, self._step, clone_views=kind == "zero-bubble"
            )
            for stage in stages.local.values()
        ]
        several = kind in ("interleaved", "zero-bubble") or len(self._stages) > 1
        self._schedule = (_LOOPED if kind == "gpipe" and several else _SCHEDULES[kind])(
            self._stages if several else self._stages[0],
            microbatches,
            loss_fn=lambda _, number: self._loss(self._step.outputs.pop(int(number)), int(number)),
            scale_grads=False,
        )

    def run(self, calls: Sequence[Call], loss: LossFunction) -> None:
        """Leave the gradients of all micro-batches in the parameters.

        Args:
            calls: the model's arguments for each micro-batch; empty where no stage needs them.
            loss: computes the losses, on the last stage.
        """
        self._loss, self._step.calls = loss, calls
        try:
            self._schedule.step(
                *([self._numbers] if self._stages[0].is_first else []),
                target=self._numbers,
                return_outputs=False,
            )
        except RuntimeError as error:
            if self._splits_backward and "backward through the graph a second" in str(error):
                raise ValueError(
                    "zero-bubble computes gradients in two passes, which is not possible for this "
                    "model, because its layers share a computed value (as the position bias of "
                    "T5): use schedule '1f1b' or 'interleaved'"
                ) from error
            if error.__cause__ is None:
                raise
            raise error.__cause__ from None  # torch wraps errors of the model
        finally:
            del self._loss
            self._step.calls = ()
            self._step.outputs.clear()


@dataclass
class _StepData:
    """What the stages of a process read and write besides the tensors that torch passes on."""

    shapes: Shapes
    calls: Sequence[Call] = ()
    outputs: dict[int, Any] = field(default_factory=dict)


class _TorchStage(pipelining.PipelineStage):
    """A stage that torch runs; it reads the arguments of the model by number of micro-batch.

    The last stage stores the output of the model, which may be anything, and returns nothing.
    """

    def __init__(
        self,
        stage: Stage,
        stages: Stages,
        shapes: Shapes,
        device: torch.device,
        step: _StepData,
        *,
        clone_views: bool,
    ) -> None:
        index, outputs = stage.index, shapes.outputs
        super().__init__(
            stage,
            index,
            stages.count,
            device,
            input_args=_blank(outputs[index - 1])
            if index
            else (torch.zeros(1, dtype=torch.int64),),
            output_args=() if index == stages.count - 1 else _blank(outputs[index]),
            group=stages.group,
        )
        self._stage, self._step, self._number = stage, step, 0
        self._clone_views = clone_views

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the stage for the micro-batch of this number."""
        self._number = fwd_chunk_id
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def forward_maybe_with_nosync(self, *received: Tensor) -> Any:
        """Run the stage on the output of the previous one, or on the inputs of the model."""
        step = self._step
        call = step.calls[self._number] if step.calls else None
        args, kwargs = self._stage.arguments(received, call, step.shapes.answers)
        output = super().forward_maybe_with_nosync(*args, **kwargs)  # type: ignore[no-untyped-call]
        if self.is_last:
            step.outputs[self._number] = output
            return ()
        found = tuple(value.contiguous() for value in as_tuple(output))
        if self._clone_views:  # torch detaches sent tensors in place, which fails for views
            found = tuple(value.clone() if value._is_view() else value for value in found)
        return found

    def _post_metadata_inference_cleanup(self) -> None:
        """Do nothing: torch would clear all gradients after a trial run, which there was not."""


def _blank(shapes: Sequence[Shape]) -> tuple[Tensor, ...]:
    """Return empty tensors of these shapes; those of a float dtype require gradients.

    A frozen stage does not need them, but it may be unfrozen later in the run.
    """
    return tuple(v.requires_grad_(v.is_floating_point()) for v in zeros(shapes, "meta"))
