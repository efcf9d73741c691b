"""Sequence parallelism: between split layers, each process has a part of the positions.

A "col" gathers the positions of all processes, and a "row" leaves each process the sum for its own
ones, which together send as much as the one sum without it. Norms, dropout and residual connections
in between run on a part of the sequence, and so do their saved activations shrink.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from stoker.core.tree import map_tensors, tensors
from stoker.parallel.rank_draws import RankDraws


class Region:
    """Blocks that run one after another, and the sequence that is in them.

    Args:
        mesh: the processes that share the layers and the sequence, in one dimension.
        drops: whether the blocks draw random numbers in training.
    """

    def __init__(self, mesh: DeviceMesh, *, drops: bool) -> None:
        self.mesh, self._drops = mesh, drops
        self._length = 0
        self._draws = RankDraws(mesh.get_local_rank())

    def enter(self, x: Tensor, *, training: bool) -> Tensor:
        """Return this process's positions of a complete sequence; its gradient is gathered."""
        if x.dim() < 3 or x.shape[1] < self.mesh.size():
            raise ValueError(
                f"a block got a tensor of shape {tuple(x.shape)}, but sequence_parallel needs "
                f"(batch, positions, features) with at least {self.mesh.size()} positions"
            )
        self._length = x.shape[1]
        self._draws.forget()
        if training and self._drops:
            self._draws.begin(x.device)
        return self.part(x)

    def leave(self, x: Tensor) -> Tensor:
        """Return the complete sequence; draw the same random numbers as the others again."""
        self._draws.end()
        return self.complete(x)

    def part(self, x: Tensor) -> Tensor:
        """Return this process's positions; the gradient is gathered."""
        full = DTensor.from_local(x, self.mesh, [Replicate()], run_check=False)
        return full.redistribute(placements=[Shard(1)]).to_local()

    def complete(self, x: Tensor) -> Tensor:
        """Return all positions, of which every process computes the same gradient."""
        return self.gather(x).to_local()

    def gather(self, x: Tensor) -> DTensor:
        """Return all positions; the gradients of the processes are summed up."""
        sizes = [len(piece) for piece in torch.arange(self._length).chunk(self.mesh.size())]
        rank = self.mesh.get_local_rank()
        expected = sizes[rank] if rank < len(sizes) else 0
        if x.dim() < 3 or x.shape[1] != expected:
            raise ValueError(
                f"a layer got a tensor of shape {tuple(x.shape)}, but with sequence_parallel this "
                f"process has {expected} of {self._length} positions: leave sequence_parallel out"
            )
        like = torch.empty((x.shape[0], self._length, *x.shape[2:]), device="meta")
        part = DTensor.from_local(
            x, self.mesh, [Shard(1)], run_check=False, shape=like.shape, stride=like.stride()
        )
        return part.redistribute(placements=[Replicate()])


def block_lists(model: nn.Module, rows: Sequence[str]) -> list[list[str]]:
    """Return the names of blocks that run one after another, for each list that has split layers.

    They are modules of one class that each have one of the ``rows``.
    """
    found: list[list[str]] = []
    for name, module in model.named_modules():
        inside = any(f"{name}.".startswith(f"{block}.") for blocks in found for block in blocks)
        children = [f"{name}.{key}".lstrip(".") for key, _ in module.named_children()]
        if inside or not children or not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        are_split = (any(r.startswith(f"{child}.") for r in rows) for child in children)
        if len({type(child) for child in module.children()}) == 1 and all(are_split):
            found.append(children)
    return found


def wrap(blocks: Sequence[nn.Module], region: Region) -> None:
    """Let the first of the blocks cut the sequence, and the last one complete it."""

    def enter(block: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return with_first(args, options, lambda x: region.enter(x, training=block.training))

    blocks[0].register_forward_pre_hook(enter, with_kwargs=True)
    blocks[-1].register_forward_hook(lambda _, __, output: _with_first(output, region.leave))


def wrap_complete(module: nn.Module, region: Region) -> None:
    """Let a module within a block, such as a router with its experts, run on all positions."""
    module.register_forward_pre_hook(
        lambda _, args, options: with_first(args, options, region.complete), with_kwargs=True
    )
    module.register_forward_hook(lambda _, __, output: _with_first(output, region.part))


def with_first(
    args: tuple[Any, ...], options: Mapping[str, Any], change: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments of a call of which the first one, positional or by name, is changed."""
    if args:
        return (change(args[0]), *args[1:]), dict(options)
    name, first = next(iter(options.items()))
    return args, {**options, name: change(first)}


def _with_first(output: Any, change: Any) -> Any:
    first = next(tensors(output))
    return map_tensors(lambda x: change(x) if x is first else x, output)
