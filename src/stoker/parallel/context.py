"""Context parallelism: each process runs the blocks of a model on its part of the sequence.

Within the blocks, a process has its positions of every sample; attention gathers the keys and the
values of the others. Before and after the blocks the sequence is complete, so that embeddings,
losses and metrics are those of one process.
"""

import inspect
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from stoker.core.tree import map_tensors, tensors
from stoker.parallel.inner_outputs import refuse_inner_outputs
from stoker.parallel.rank_draws import RankDraws, has_dropout
from stoker.parallel.shards import blocks_of
from stoker.parallel.tensor import verify


def split_sequence(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Let the blocks of a model run on parts of the sequence, in place.

    The gradients of a block's parameters are those of its positions, times the number of
    processes: their mean over the group is the gradient.

    Args:
        model: its blocks must be a list of modules of one class, take and return a tensor of shape
            (batch, positions, features), and compute attention by torch's
            `scaled_dot_product_attention`.
        group: the processes that share the sequence.

    Raises:
        ValueError: the model is another, or computes other values on parts of the sequence.
    """
    blocks = blocks_of(model, None)
    if not blocks:
        raise ValueError(
            f"{type(model).__name__} has no list of modules of one class, which context could run "
            "on parts of the sequence: use another layout"
        )
    if any("forward" in vars(block) for block in blocks):
        raise ValueError(
            f"the blocks of {type(model).__name__} have a forward of their own, as "
            "activation_checkpointing gives them, which context would replace: leave "
            "activation_checkpointing out, or use another layout"
        )
    _check_attention(model)
    refuse_inner_outputs(model, "context")
    example = verify.run_example(model, least=4 * dist.get_world_size(group))
    region = _Region(group, drops=any(has_dropout(block) for block in blocks))
    for number, block in enumerate(blocks):
        _wrap(block, region, is_first=number == 0, is_last=number == len(blocks) - 1)
    if example is not None:
        verify.check_output(model, example)


def _check_attention(model: nn.Module) -> None:
    config = getattr(model, "config", None)
    attention = getattr(config, "_attn_implementation", "sdpa")
    if attention != "sdpa":
        raise ValueError(
            f"{type(model).__name__} computes attention by {attention!r}, but context needs "
            "scaled_dot_product_attention: create the model with attn_implementation='sdpa' if it "
            "has that, or use another layout"
        )


class _Region:
    """The blocks, and the part of the current sequence that this process has.

    Args:
        group: the processes that share the sequence.
        drops: whether blocks draw random numbers in training.
    """

    def __init__(self, group: dist.ProcessGroup, *, drops: bool) -> None:
        self.group, self.drops = group, drops
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.lengths: list[int] = []
        self._draws = RankDraws(self.rank)

    @property
    def length(self) -> int:
        """The number of positions of the complete sequence."""
        return sum(self.lengths)

    @property
    def start(self) -> int:
        """The first position that this process has."""
        return sum(self.lengths[: self.rank])

    def enter(self, x: Tensor, *, own_draws: bool) -> Tensor:
        """Return this process's positions; draw other random numbers than the other processes."""
        length = x.shape[1] if x.dim() > 2 else 0
        if length < 2 * self.size:
            raise ValueError(
                f"a block got a tensor of shape {tuple(x.shape)}, expected (batch, positions, "
                f"features) with at least {2 * self.size} positions for context {self.size}"
            )
        short, longer = divmod(length, self.size)
        self.lengths = [short + (rank < longer) for rank in range(self.size)]
        self._draws.forget()
        if own_draws:
            self._draws.begin(x.device)
        found: Tensor = _Enter.apply(x, self)  # type: ignore[no-untyped-call]
        return found

    def leave(self, x: Tensor) -> Tensor:
        """Return the positions of all processes; draw the same random numbers again."""
        self._draws.end()
        found: Tensor = _Leave.apply(x, self)  # type: ignore[no-untyped-call]
        return found

    def part(self, x: Tensor, dim: int) -> Tensor:
        """Return this process's part of a complete tensor."""
        return x.narrow(dim, self.start, self.lengths[self.rank])

    def gather(self, x: Tensor, dim: int) -> Tensor:
        """Return the tensors of all processes side by side."""
        longest = max(self.lengths)
        sent = _padded(x.movedim(dim, 0), longest)
        found = sent.new_empty((self.size, *sent.shape))
        dist.all_gather_single(found.flatten(0, 1), sent, group=self.group)
        pieces = [piece[:length] for piece, length in zip(found, self.lengths, strict=True)]
        return torch.cat(pieces).movedim(0, dim)

    def sum_part(self, x: Tensor, dim: int) -> Tensor:
        """Return this process's part of the sum of complete tensors."""
        longest = max(self.lengths)
        sent = torch.cat(
            [_padded(p, longest) for p in torch.split(x.movedim(dim, 0), self.lengths)]
        )
        found = sent.new_empty((longest, *sent.shape[1:]))
        dist.reduce_scatter_single(found, sent, group=self.group)
        return found[: self.lengths[self.rank]].movedim(0, dim)


def _padded(x: Tensor, length: int) -> Tensor:
    missing = length - len(x)
    return torch.cat([x, x.new_zeros((missing, *x.shape[1:]))]) if missing else x.contiguous()


class _Enter(torch.autograd.Function):
    """Complete → part; its gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, region: _Region) -> Tensor:
        ctx.region, ctx.lengths = region, region.lengths
        return region.part(x, 1).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.region.lengths = ctx.lengths
        return ctx.region.gather(grad, 1) / ctx.region.size, None


class _Leave(torch.autograd.Function):
    """Part → complete; its gradient is cut, and multiplied for the mean over processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, region: _Region) -> Tensor:
        ctx.region, ctx.lengths = region, region.lengths
        return region.gather(x, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.region.lengths = ctx.lengths
        return ctx.region.part(grad, 1) * ctx.region.size, None


class _Gather(torch.autograd.Function):
    """The keys or values of a part → those of all; each process uses them for other queries."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, region: _Region) -> Tensor:
        ctx.region, ctx.lengths = region, region.lengths
        return region.gather(x, -2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.region.lengths = ctx.lengths
        return ctx.region.sum_part(grad, -2), None


class _Attention(TorchFunctionMode):
    """Lets attention read the keys and values of all positions."""

    def __init__(self, region: _Region) -> None:
        super().__init__()
        self.region = region
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **kwargs or {})
        self.calls += 1
        return self._attend(*args, **kwargs or {})

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        region = self.region
        if query.shape[-2] != region.lengths[region.rank] or key.shape[-2] != query.shape[-2]:
            raise ValueError(
                f"a block attends from {query.shape[-2]} to {key.shape[-2]} positions, but with "
                f"context {region.size} it has {region.lengths[region.rank]}: use another layout"
            )
        if attn_mask is not None and attn_mask.shape[-1] != region.length:
            raise ValueError(
                f"a block masks {attn_mask.shape[-1]} positions, but there are {region.length}: "
                "its mask does not come from outside of the blocks, so use another layout"
            )
        if is_causal:
            rows = torch.arange(query.shape[-2], device=query.device) + region.start
            columns = torch.arange(region.length, device=query.device)
            attn_mask = rows.unsqueeze(-1) >= columns
        keys: Tensor = _Gather.apply(key, region)  # type: ignore[no-untyped-call]
        values: Tensor = _Gather.apply(value, region)  # type: ignore[no-untyped-call]
        return functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=attn_mask, dropout_p=dropout_p, **options
        )


def _wrap(block: nn.Module, region: _Region, *, is_first: bool, is_last: bool) -> None:
    own: Any = type(block).forward
    names = list(inspect.signature(own).parameters)[1:]

    def forward(self: nn.Module, *args: Any, **options: Any) -> Any:
        if self.training and getattr(self, "gradient_checkpointing", False):
            raise ValueError(
                f"{type(self).__name__} computes its attention again in the backward pass, where "
                "context does not reach it: call model.gradient_checkpointing_disable()"
            )
        given = {**dict(zip(names, args, strict=False)), **options}
        name, x = next(iter(given.items()))
        if is_first:
            x = region.enter(x, own_draws=region.drops and self.training)
        given = {key: _part_of(key, value, region) for key, value in given.items() if key != name}
        with _Attention(region) as attention:
            found = own(self, x, **given)
        if not attention.calls:
            raise ValueError(
                f"{type(self).__name__} does not call scaled_dot_product_attention, which context "
                "needs: use another layout"
            )
        return _leave(found, region) if is_last else found

    block.forward = MethodType(forward, block)


def _part_of(name: str, value: Any, region: _Region) -> Any:
    """Return an argument of a block for the positions of this process."""

    def part(x: Tensor) -> Tensor:
        dim = -2 if "mask" in name else 0 if x.dim() == 1 else 1
        if x.dim() < -dim or ("mask" in name and x.dim() < 3) or x.shape[dim] != region.length:
            return x
        return region.part(x, dim)

    return value if name.startswith("encoder") else map_tensors(part, value)


def _leave(found: Any, region: _Region) -> Any:
    first = next(tensors(found))
    return map_tensors(lambda x: region.leave(x) if x is first else x, found)
