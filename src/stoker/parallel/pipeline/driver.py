"""Stages run by `torch.distributed.pipelining`: torch moves tensors, we say what is computed.

Torch is given the numbers of the micro-batches alone, as the input of the first stage and as the
target of the last; what a number stands for is looked up here. So a batch may be anything that
can be cut, and torch's own cutting and its trial run of model and loss are not needed.

Importing this is slow: it is imported where a pipeline is run.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributed import pipelining

from stoker.parallel.pipeline.forward_passes import Call, Shapes, values, zeros
from stoker.parallel.pipeline.schedules import Kind
from stoker.parallel.pipeline.stages import Stage, Stages

Judge: TypeAlias = Callable[[Any, int], Tensor]
"""The loss of the model's output for the micro-batch of that number."""

_SCHEDULES: dict[str, Any] = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "zero-bubble": pipelining.ScheduleInterleavedZeroBubble,
}
_LOOPED: Any = pipelining.ScheduleLoopedBFS  # gpipe, where a process has several stages

# where a part of a model fails, torch would log its whole schedule
logging.getLogger(pipelining.schedules.__name__).setLevel(logging.CRITICAL)


class Drive:
    """A number of equal micro-batches, forward and back through the stages, again and again."""

    def __init__(
        self, kind: Kind, stages: Stages, shapes: Shapes, microbatches: int, device: torch.device
    ) -> None:
        self._numbers = torch.arange(microbatches)
        self._judge: Judge
        self._stages = [
            _TorchStage(stage, stages, shapes, device, whole=kind == "zero-bubble")
            for stage in stages.local.values()
        ]
        several = kind in ("interleaved", "zero-bubble") or len(self._stages) > 1
        self._schedule = (_LOOPED if kind == "gpipe" and several else _SCHEDULES[kind])(
            self._stages if several else self._stages[0],
            microbatches,
            loss_fn=lambda output, number: self._judge(output, int(number)),
            scale_grads=False,
        )

    def run(self, calls: Sequence[Call], judge: Judge) -> None:
        """Leave the gradients of all micro-batches in the parameters.

        Args:
            calls: what the model is called with, by micro-batch; empty but on the first stage.
            judge: gives the losses, on the last stage.
        """
        self._judge, self._stages[0].calls = judge, calls
        try:
            self._schedule.step(
                *([self._numbers] if calls else []), target=self._numbers, return_outputs=False
            )
        except RuntimeError as error:
            if error.__cause__ is None:
                raise
            raise error.__cause__ from None  # torch wraps what a part of the model raised
        finally:
            del self._judge
            self._stages[0].calls = ()


class _TorchStage(pipelining.PipelineStage):
    """A stage as torch drives it; the first one looks up what a micro-batch's number stands for."""

    def __init__(
        self, stage: Stage, stages: Stages, shapes: Shapes, device: torch.device, *, whole: bool
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
        self._whole = whole

    def forward_maybe_with_nosync(self, *received: Tensor) -> Any:
        """Run the stage on what the one before it sent, or on the inputs of the model."""
        args, kwargs = self.calls[int(received[0])] if self.is_first else (received, {})
        output = super().forward_maybe_with_nosync(*args, **kwargs)  # type: ignore[no-untyped-call]
        if self.is_last:
            return output
        found = tuple(value.contiguous() for value in values(output))
        if self._whole:  # torch detaches in place what it has sent, which views do not allow
            found = tuple(value.clone() if value._is_view() else value for value in found)
        return found

    def _post_metadata_inference_cleanup(self) -> None:
        """Nothing was tried out, so nothing is left of it; torch would forget all gradients."""


def _blank(shapes: Sequence[tuple[torch.Size, torch.dtype]]) -> tuple[Tensor, ...]:
    """Tensors of these shapes that hold nothing; gradients come back for all that can have them.

    Also where a frozen part needs none, since it may thaw while the run goes on.
    """
    return tuple(v.requires_grad_(v.is_floating_point()) for v in zeros(shapes, "meta"))
