"""The operations of a plan: how each splits a layer.

    col      split the output features and leave the output split, for the "row" that follows
    col:N    the same for a layer whose output is N equal parts side by side, such as q, k and v
    row      split the input features; the output is summed up and complete
    gather   split the output features and gather the complete output: a head of scores
    embed    split the rows of an embedding; the output is complete
    share    pass the input of a module to all split layers in it; its gradient is summed up once
    divide   divide a number of a module, such as its count of heads, by the number of processes

A layer is an `nn.Linear`, or a `Conv1D` of transformers' GPT-2, which is a linear layer with a
transposed weight; "embed" takes an `nn.Embedding`.
"""

import math
from functools import partial
from types import MethodType
from typing import Any

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

OPERATIONS = ("col", "row", "gather", "embed", "share", "divide")


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
    return int((operation == "row") != _is_transposed(module))


def split(module: nn.Module, operation: str, parts: int, mesh: DeviceMesh) -> None:
    """Apply an operation to a module."""
    if operation == "share":
        module.register_forward_pre_hook(partial(_share_input, mesh), with_kwargs=True)
        return
    distribute_module(
        module, mesh, partial(_split_parameters, operation), *_input_and_output_fn(operation, parts)
    )
    coordinate = (mesh.get_local_rank(), mesh.size())
    if operation == "embed":
        module.forward = MethodType(partial(_look_up, coordinate=coordinate), module)
    elif parts > 1:
        module.forward = MethodType(partial(_packed, parts=parts, coordinate=coordinate), module)


def _is_transposed(module: object) -> bool:
    """Return whether it is a Conv1D of transformers, with a weight of shape (in, out)."""
    return type(module).__name__ == "Conv1D" and not isinstance(module, nn.Conv1d)


def _weight(module: nn.Module) -> Tensor:
    return module.get_parameter("weight")


def _split_parameters(operation: str, _: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for name, parameter in [*module.named_parameters(recurse=False)]:
        dim = weight_dim(module, operation) if name == "weight" else 0
        replicated = name != "weight" and operation == "row"
        split = distribute_tensor(parameter, mesh, [Replicate() if replicated else Shard(dim)])
        module.register_parameter(name, nn.Parameter(split, parameter.requires_grad))


def _input_and_output_fn(operation: str, parts: int) -> tuple[Any, Any]:
    """Return the input and output functions of the module, for `distribute_module`."""
    if operation == "embed" or parts > 1:
        return None, None
    before: Placement = Shard(-1) if operation == "row" else Replicate()
    after: Placement = Shard(-1) if operation == "col" else Replicate()
    return partial(_enter, before), partial(_leave, after)


def _enter(
    placement: Placement, _: nn.Module, inputs: tuple[Tensor, ...], mesh: DeviceMesh
) -> DTensor:
    """Return the input as a DTensor; the gradient of a replicated input is summed up."""
    if isinstance(inputs[0], DTensor):
        return inputs[0]
    return DTensor.from_local(inputs[0], mesh, [placement], run_check=False)


def _share_input(
    mesh: DeviceMesh, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with the first one, positional or by name, as a DTensor."""
    if args:
        return (_enter(Replicate(), module, args, mesh), *args[1:]), options
    name, first = next(iter(options.items()))
    return args, {**options, name: _enter(Replicate(), module, (first,), mesh)}


def _leave(placement: Placement, _: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
    return output.redistribute(placements=[placement]).to_local()


def _look_up(self: nn.Embedding, tokens: Tensor, coordinate: tuple[int, int]) -> Tensor:
    """Look up the tokens whose rows this process has; the sum over processes is the output."""
    assert isinstance(self.weight, DTensor)
    rank, size = coordinate
    rows = self.weight.to_local()
    local = tokens - rank * math.ceil(self.num_embeddings / size)
    is_local = (local >= 0) & (local < len(rows))
    vectors = functional.embedding(local.where(is_local, 0), rows) * is_local.unsqueeze(-1)
    if self.padding_idx is not None:  # its row is not trained
        vectors = vectors.where((tokens != self.padding_idx).unsqueeze(-1), vectors.detach())
    parts = DTensor.from_local(vectors, self.weight.device_mesh, [Partial()], run_check=False)
    return parts.redistribute(placements=[Replicate()]).to_local()


def _packed(self: nn.Module, x: Tensor, parts: int, coordinate: tuple[int, int]) -> Tensor:
    """Return this process's share of each part of the output, side by side.

    The weight is sharded evenly, like any other, and gathered at each use: this sends less than
    gathering activations once a batch has more tokens than the layer has features.
    """
    assert isinstance(self.weight, DTensor)
    dim = weight_dim(self, "col")
    weight = _local_columns(self.weight, dim, parts, coordinate)
    bias = (
        _local_columns(self.bias, 0, parts, coordinate) if isinstance(self.bias, DTensor) else None
    )
    replicated = _enter(Replicate(), self, (x,), self.weight.device_mesh)
    x = replicated.to_local(grad_placements=[Partial()])
    return functional.linear(x, weight.mT if dim else weight, bias)


def _local_columns(split: DTensor, dim: int, parts: int, coordinate: tuple[int, int]) -> Tensor:
    rank, size = coordinate
    full = split.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
    shares = torch.unflatten(full, dim, (parts, size, -1))
    return shares.select(dim + 1, rank).flatten(dim, dim + 1)
