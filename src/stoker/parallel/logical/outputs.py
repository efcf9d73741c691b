"""What all logical ranks have computed in a step, on every process."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
import torch.distributed as c10d
from torch import Tensor

from stoker.core import dist
from stoker.core.tree import map_tensors
from stoker.core.types import Output

Outputs: TypeAlias = Mapping[tuple[int, int], Output]
"""The outputs of a step by logical rank and number of the micro-batch."""

_COLUMNS = (
    5  # whether there is an output, whether it has a loss, loss, weight, whether more follows
)


def gather_rows(own: Tensor, ranks: range, total: int) -> Tensor:
    """Return the rows of all logical ranks. All processes must call it.

    Args:
        own: a row for each logical rank of this process.
        ranks: the logical ranks of this process.
        total: the number of logical ranks.
    """
    found = torch.zeros(total, *own.shape[1:], dtype=own.dtype)
    found[ranks.start : ranks.stop] += own  # turns -0.0 into 0.0, as adding the others does
    if dist.world_size() > 1:
        dist.wait_for(c10d.all_reduce(found, async_op=True))
    return found


def gather_outputs(
    outputs: Outputs, ranks: range, total: int, rounds: int, *, tensors: bool
) -> list[Output]:
    """Return the outputs of all logical ranks, in their order. All processes must call it.

    Args:
        outputs: those of this process.
        ranks: the logical ranks of this process.
        total: the number of logical ranks.
        rounds: the number of micro-batches per logical rank.
        tensors: whether to return the outputs and targets too, not only losses and scalars.
    """
    table = torch.zeros(len(ranks), rounds, _COLUMNS, dtype=torch.float64)
    for (rank, turn), output in outputs.items():
        more = tensors or bool(output.scalars)
        loss = 0.0 if output.loss is None else float(output.loss.detach())
        row = [1.0, output.loss is not None, loss, output.weight or 0.0, more]
        table[ranks.index(rank), turn] = torch.tensor(row, dtype=torch.float64)
    everywhere = gather_rows(table, ranks, total)
    further: dict[tuple[int, int], tuple[Any, ...]] = {}
    if bool(everywhere[..., 4].any()):
        own = {place: _further(output, tensors=tensors) for place, output in outputs.items()}
        for found in dist.all_gather_object(own):
            further |= found
    places = [(rank, turn) for rank in range(total) for turn in range(rounds)]
    return [
        _output(everywhere[place], *further.get(place, _NOTHING_FURTHER))
        for place in places
        if everywhere[place][0]
    ]


def _further(output: Output, *, tensors: bool) -> tuple[Any, ...]:
    """Return scalars, outputs and targets as they are sent to other processes."""
    kept = (output.outputs, output.targets) if tensors else (_NOT_GATHERED, _NOT_GATHERED)
    return tuple(map_tensors(_on_cpu, one) for one in (dict(output.scalars), *kept))


def _output(row: Tensor, scalars: Any, outputs: Any, targets: Any) -> Output:
    return Output(row[2] if row[1] else None, outputs, targets, float(row[3]), scalars)


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu()


class _NotGathered:
    """Stands for outputs that no hook reads."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # looked up by copy and pickle
            raise AttributeError(name)
        raise AttributeError(
            f"outputs and targets have no {name!r} here: with logical ranks they are gathered only "
            "for hooks that read them, so set reads_outputs = ('train', 'val') in the hook"
        )


_NOT_GATHERED = _NotGathered()
_NOTHING_FURTHER: tuple[Any, ...] = ({}, _NOT_GATHERED, _NOT_GATHERED)
