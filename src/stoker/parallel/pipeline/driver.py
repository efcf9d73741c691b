"""Run pipeline stages with `torch.distributed.pipelining`.

Torch gets only the numbers of the micro-batches, as the input of the first stage and the target of
the last one, and this module looks up the micro-batch of a number. So a batch can be anything that
can be cut, and torch neither cuts batches nor runs model and loss once to learn shapes.

This module is slow to import, so import it where a pipeline runs.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributed import pipelining

from stoker.parallel.pipeline.forward_passes import Call, Shapes, as_tuple, zeros
from stoker.parallel.pipeline.stage_plan import ScheduleKind
from stoker.parallel.pipeline.stages import Stage, Stages

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
        self._stages = [
            _TorchStage(stage, stages, shapes, device, clone_views=kind == "zero-bubble")
            for stage in stages.local.values()
        ]
        several = kind in ("interleaved", "zero-bubble") or len(self._stages) > 1
        self._schedule = (_LOOPED if kind == "gpipe" and several else _SCHEDULES[kind])(
            self._stages if several else self._stages[0],
            microbatches,
            loss_fn=lambda output, number: self._loss(output, int(number)),
            scale_grads=False,
        )

    def run(self, calls: Sequence[Call], loss: LossFunction) -> None:
        """Leave the gradients of all micro-batches in the parameters.

        Args:
            calls: the model's arguments for each micro-batch; empty except on the first stage.
            loss: computes the losses, on the last stage.
        """
        self._loss, self._stages[0].calls = loss, calls
        try:
            self._schedule.step(
                *([self._numbers] if calls else []), target=self._numbers, return_outputs=False
            )
        except RuntimeError as error:
            if error.__cause__ is None:
                raise
            raise error.__cause__ from None  # torch wraps errors of the model
        finally:
            del self._loss
            self._stages[0].calls = ()


class _TorchStage(pipelining.PipelineStage):
    """A stage that torch runs; the first stage reads the micro-batch of a number."""

    def __init__(
        self,
        stage: Stage,
        stages: Stages,
        shapes: Shapes,
        device: torch.device,
        *,
        clone_views: bool,
    ) -> None:
        index = stage.index
        super().__init__(
            stage,
            index,
            stages.count,
            device,
            input_args=_blank(shapes[index - 1]) if index else (torch.zeros(1, dtype=torch.int64),),
            output_args=_blank(shapes[index]),
            group=stages.group,
        )
        self.calls: Sequence[Call] = ()
        self._clone_views = clone_views

    def forward_maybe_with_nosync(self, *received: Tensor) -> Any:
        """Run the stage on the output of the previous one, or on the inputs of the model."""
        args, kwargs = self.calls[int(received[0])] if self.is_first else (received, {})
        output = super().forward_maybe_with_nosync(*args, **kwargs)  # type: ignore[no-untyped-call]
        if self.is_last:
            return output
        found = tuple(value.contiguous() for value in as_tuple(output))
        if self._clone_views:  # torch detaches sent tensors in place, which fails for views
            found = tuple(value.clone() if value._is_view() else value for value in found)
        return found

    def _post_metadata_inference_cleanup(self) -> None:
        """Do nothing: torch would clear all gradients after a trial run, which there was not."""


def _blank(shapes: Sequence[tuple[torch.Size, torch.dtype]]) -> tuple[Tensor, ...]:
    """Return empty tensors of these shapes; those of a float dtype require gradients.

    A frozen stage does not need them, but it may be unfrozen later in the run.
    """
    return tuple(v.requires_grad_(v.is_floating_point()) for v in zeros(shapes, "meta"))
