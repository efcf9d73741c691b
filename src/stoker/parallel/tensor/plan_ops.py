"""The operations of a plan: how each splits a layer.

    col      split the output features and leave the output split, for the "row" that follows
    col:N    the same for a layer whose output is N equal parts side by side, such as q, k and v
    repeat:N the same for a layer with N heads, fewer than processes: some compute the same head
    row      split the input features; the output is summed up and complete
    gather   split the output features and gather the complete output: a head of scores
    embed    split the rows of an embedding; the output is complete
    share    pass the input of a module to all split layers in it; its gradient is summed up once
    sum      keep a module between a "col" and a "row", such as a norm of single heads, on every
             process, and sum up the gradients of its parameters
    experts  split each expert of a mixture that is stored in the tensors `gate_up_proj` and
             `down_proj`, as in transformers
    divide   divide a number of a module, such as its count of heads, by the number of processes;
             divide:N divides it by N

A layer is an `nn.Linear`, or a `Conv1D` of transformers' GPT-2, which is a linear layer with a
transposed weight. "embed" takes an `nn.Embedding`, and so does "col", for a table with one column
per head.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MethodType
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.nn import functional

from stoker.parallel.tensor.scores import SplitScores
from stoker.parallel.tensor.sequence import Region, with_first

Enter: TypeAlias = Callable[[Tensor], DTensor]
"""Makes the input of a layer complete, as a DTensor."""

OPERATIONS = ("col", "row", "gather", "embed", "share", "divide", "sum", "repeat", "experts")

EXPERTS = {"gate_up_proj": 1, "down_proj": 2}
"""The dimension that "experts" splits, for each parameter."""


def is_layer(thing: object) -> bool:
    """Return whether it is a layer that the operations for layers can split."""
    return isinstance(thing, nn.Linear) or _is_transposed(thing)


def is_embedding(thing: object) -> bool:
    """Return whether "embed" can split it; some options need the unsplit embedding."""
    return isinstance(thing, nn.Embedding) and not (
        thing.max_norm or thing.sparse or thing.scale_grad_by_freq
    )


def features(module: nn.Module, operation: str) -> int:
    """Return the number of features, or rows, that the operation splits."""
    return int(_weight(module).shape[weight_dim(module, operation)])


def weight_dim(module: nn.Module, operation: str) -> int:
    """Return the dimension of the weight that the operation splits."""
    table = isinstance(module, nn.Embedding) and operation == "col"
    return int((operation == "row") != (_is_transposed(module) or table))


def is_table(thing: object) -> bool:
    """Return whether it is an embedding whose columns "col" can split."""
    is_plain = isinstance(thing, nn.Embedding) and type(thing).forward is nn.Embedding.forward
    return is_plain and is_embedding(thing)


def are_experts(thing: object) -> bool:
    """Return whether it is a module that "experts" can split."""
    if not isinstance(thing, nn.Module):
        return False
    shapes = {name: parameter.shape for name, parameter in thing.named_parameters()}
    if shapes.keys() != EXPERTS.keys() or any(len(shape) != 3 for shape in shapes.values()):
        return False
    (count, both, width), down = shapes["gate_up_proj"], shapes["down_proj"]
    return (count, width, both) == (down[0], down[1], 2 * down[2])


def split(
    module: nn.Module, operation: str, parts: int, mesh: DeviceMesh, region: Region | None = None
) -> None:
    """Apply an operation to a module.

    Args:
        module: the module.
        operation: its name, or "scores" for a "gather" that leaves scores split for the loss.
        parts: its number of parts or heads.
        mesh: the processes that share the module.
        region: for a module that gets or returns a part of the sequence.
    """
    enter = partial(_enter, mesh) if region is None else partial(_gather, region)
    if operation == "share":
        # a function is not copied with the module; a mesh cannot be
        module.register_forward_pre_hook(
            lambda _, args, options: with_first(args, options, enter), with_kwargs=True
        )
        return
    forward = _forward(module, operation, parts, mesh, enter)
    if forward is not None:
        if operation != "sum":
            _split_parameters(operation, "", module, mesh)
        module.forward = MethodType(forward, module)
        return
    after: Placement = Replicate() if region is None else Shard(1)
    functions = _input_and_output_fn(operation, enter, after)
    distribute_module(module, mesh, partial(_split_parameters, operation), *functions)


def _forward(
    module: nn.Module, operation: str, parts: int, mesh: DeviceMesh, enter: Enter
) -> Callable[..., Any] | None:
    """Return the method that replaces the forward pass of the module; None if its own remains."""
    given = vars(module).get("forward")  # of this instance alone
    own: Any = type(module).forward if given is None else lambda _, *a, **k: given(*a, **k)
    coordinate = (mesh.get_local_rank(), mesh.size())
    packed = operation == "col" and parts > 1
    replacements: dict[str, Callable[..., Any]] = {
        "embed": lambda self, tokens: _look_up(self, tokens, own, coordinate),
        "sum": lambda self, *args, **options: _summed(self, own, mesh, args, options),
        "experts": lambda self, *args: _experts(self, own, mesh, coordinate, args),
        "repeat": lambda self, x: _packed(self, enter(x), partial(_head, parts, coordinate)),
    }
    if packed:
        return lambda self, x: _packed(self, enter(x), partial(_columns, parts, coordinate))
    if operation == "col" and isinstance(module, nn.Embedding):
        return _columns_of_table
    return replacements.get(operation)


def _is_transposed(module: object) -> bool:
    """Return whether it is a Conv1D of transformers, with a weight of shape (in, out)."""
    return type(module).__name__ == "Conv1D" and not isinstance(module, nn.Conv1d)


def _weight(module: nn.Module) -> Tensor:
    return module.get_parameter("weight")


def _split_parameters(operation: str, _: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for name, parameter in [*module.named_parameters(recurse=False)]:
        dim = weight_dim(module, operation) if name == "weight" else EXPERTS.get(name, 0)
        replicated = name != "weight" and operation == "row"
        placement = Replicate() if replicated else Shard(dim)  # all processes have the same values
        split = distribute_tensor(parameter, mesh, [placement], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(split, parameter.requires_grad))


def _input_and_output_fn(operation: str, enter: Enter, after: Placement) -> tuple[Any, Any]:
    """Return the input and output functions of the module, for `distribute_module`.

    Args:
        operation: "col", "row", "gather" or "scores".
        enter: makes the input of a "col" or "gather" complete.
        after: the placement of the output of a "row".
    """
    outputs: dict[str, Placement] = {"col": Shard(-1), "row": after}
    leave = partial(_leave, outputs.get(operation, Replicate()))
    if operation == "scores":
        return lambda _, inputs, mesh: enter(inputs[0]), _leave_split
    if operation == "row":
        return lambda _, inputs, mesh: _enter(mesh, inputs[0], Shard(-1)), leave
    return lambda _, inputs, mesh: enter(inputs[0]), leave


def _enter(mesh: DeviceMesh, x: Tensor, placement: Placement | None = None) -> DTensor:
    """Return the input as a DTensor; the gradient of a replicated input is summed up."""
    if isinstance(x, DTensor):
        return x
    return DTensor.from_local(x, mesh, [placement or Replicate()], run_check=False)


def _gather(region: Region, x: Tensor) -> DTensor:
    """Return the input as a DTensor with the positions of all processes."""
    return x if isinstance(x, DTensor) else region.gather(x)


def _leave(placement: Placement, _: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
    return output.redistribute(placements=[placement]).to_local()


def _leave_split(module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
    """Return scores that stay split for the loss, or complete ones if there is none to train."""
    if not module.training or not output.requires_grad:
        return _leave(Replicate(), module, output, mesh)
    total = output.shape[-1]
    return SplitScores.of(_leave(Shard(-1), module, output, mesh), mesh, total)


def _look_up(
    self: nn.Embedding, tokens: Tensor, forward: Callable[..., Any], coordinate: tuple[int, int]
) -> Tensor:
    """Look up the tokens whose rows this process has; the sum over processes is the output."""
    assert isinstance(self.weight, DTensor)
    rank, size = coordinate
    mesh, rows = self.weight.device_mesh, self.weight.to_local()
    local = tokens - rank * math.ceil(self.num_embeddings / size)
    is_local = (local >= 0) & (local < len(rows))
    padding, self.padding_idx = self.padding_idx, None  # it is a number of the complete table
    try:
        found = _with_parameters(self, {"weight": rows}, forward, (local.where(is_local, 0),))
    finally:
        self.padding_idx = padding
    vectors = found * is_local.unsqueeze(-1)
    if padding is not None:  # its row is not trained
        vectors = vectors.where((tokens != padding).unsqueeze(-1), vectors.detach())
    return _sum_up(vectors, mesh)


def _columns_of_table(self: nn.Embedding, index: Tensor) -> Tensor:
    """Look up this process's columns of a table."""
    assert isinstance(self.weight, DTensor)
    return functional.embedding(index, self.weight.to_local(), self.padding_idx)


def _summed(
    self: nn.Module,
    forward: Callable[..., Any],
    mesh: DeviceMesh,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    """Run a module whose parameters have another gradient in each process; their sum counts."""
    own = {name: p for name, p in self._parameters.items() if p is not None}
    summed = {name: _sum_gradient(parameter, mesh) for name, parameter in own.items()}
    return _with_parameters(self, summed, forward, args, options)


def _experts(
    self: nn.Module,
    forward: Callable[..., Any],
    mesh: DeviceMesh,
    coordinate: tuple[int, int],
    args: tuple[Any, ...],
) -> Tensor:
    """Run this process's share of each expert; the sum over processes is the output."""
    both, down = self.gate_up_proj, self.down_proj
    assert isinstance(both, DTensor)
    assert isinstance(down, DTensor)
    local = {
        "gate_up_proj": _local_part(both, partial(_columns, 2, coordinate, dim=1)),
        "down_proj": down.to_local(),
    }
    exact = args[0].dtype  # routers compute in float32, but sums of gradients in it would differ
    entered = tuple(
        _sum_gradient(a.to(torch.promote_types(a.dtype, exact)), mesh) if _is_float(a) else a
        for a in args
    )
    return _sum_up(_with_parameters(self, local, forward, entered), mesh)


def _packed(self: nn.Module, replicated: DTensor, pick: Callable[..., Tensor]) -> Tensor:
    """Return the output for the features that ``pick`` chooses for this process.

    The weight is sharded evenly, like any other, and gathered at each use: this sends less than
    gathering activations once a batch has more tokens than the layer has features.
    """
    assert isinstance(self.weight, DTensor)
    dim = weight_dim(self, "col")
    weight = _local_part(self.weight, partial(pick, dim=dim))
    bias = _local_part(self.bias, partial(pick, dim=0)) if isinstance(self.bias, DTensor) else None
    x = replicated.to_local(grad_placements=[Partial()])
    return functional.linear(x, weight.mT if dim else weight, bias)


def _local_part(split: DTensor, pick: Callable[[Tensor], Tensor]) -> Tensor:
    """Gather a parameter and return what this process uses of it."""
    full = split.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
    return pick(full)


def _columns(parts: int, coordinate: tuple[int, int], full: Tensor, dim: int) -> Tensor:
    """Return this process's share of each part, side by side."""
    rank, size = coordinate
    shares = torch.unflatten(full, dim, (parts, size, -1))
    return shares.select(dim + 1, rank).flatten(dim, dim + 1)


def _head(heads: int, coordinate: tuple[int, int], full: Tensor, dim: int) -> Tensor:
    """Return the head that this process uses."""
    rank, size = coordinate
    return torch.unflatten(full, dim, (heads, -1)).select(dim, rank * heads // size)


def _sum_gradient(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return the tensor; its gradient is summed up over the processes."""
    replicated = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    return replicated.to_local(grad_placements=[Partial()])


def _sum_up(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return the sum of a tensor over the processes."""
    parts = DTensor.from_local(x, mesh, [Partial()], run_check=False)
    return parts.redistribute(placements=[Replicate()]).to_local()


def _with_parameters(
    module: nn.Module,
    values: Mapping[str, Tensor],
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Run a forward pass with other tensors in place of the module's own parameters."""
    held = dict(module._parameters)
    module._parameters.update(cast("Mapping[str, nn.Parameter]", values))
    try:
        return forward(module, *args, **options or {})
    finally:
        module._parameters.update(held)


def _is_float(thing: object) -> bool:
    return isinstance(thing, Tensor) and thing.is_floating_point()
