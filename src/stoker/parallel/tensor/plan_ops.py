"""The words of a plan: what each does with a layer.

    col      the output features are split and stay so, for the "row" that follows
    col:N    the same for a layer whose output is N equal parts side by side, such as q, k and v
    row      the input features are split; the output is summed up and whole
    gather   the output features are split, and gathered into a whole output: a head of scores
    embed    the rows of an embedding are split; the output is whole
    share    the input of a module goes to all split layers in it: its gradient is summed up once
    divide   a number of a module, such as its count of heads, becomes this process's share

A layer is an `nn.Linear`, or one like it whose weight stands the other way round (`Conv1D` of
the GPT-2 in transformers); "embed" takes an `nn.Embedding`.
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

WORDS = ("col", "row", "gather", "embed", "share", "divide")


def is_layer(thing: object) -> bool:
    """Whether the words for layers know what to split in it."""
    return isinstance(thing, nn.Linear) or _is_transposed(thing)


def is_embedding(thing: object) -> bool:
    """Whether "embed" can split it; some options need the whole of it in one place."""
    return isinstance(thing, nn.Embedding) and not (
        thing.max_norm or thing.sparse or thing.scale_grad_by_freq
    )


def features(module: nn.Module, word: str) -> int:
    """How many features, or rows, the word splits."""
    return int(_weight(module).shape[weight_dim(module, word)])


def weight_dim(module: nn.Module, word: str) -> int:
    """The dimension of the weight that the word splits."""
    return int((word == "row") != _is_transposed(module))


def split(module: nn.Module, word: str, parts: int, mesh: DeviceMesh) -> None:
    """Do what the word says to a module."""
    if word == "share":
        module.register_forward_pre_hook(partial(_share_input, mesh), with_kwargs=True)
        return
    distribute_module(module, mesh, partial(_split_parameters, word), *_around(word, parts))
    place = (mesh.get_local_rank(), mesh.size())
    if word == "embed":
        module.forward = MethodType(partial(_look_up, place=place), module)
    elif parts > 1:
        module.forward = MethodType(partial(_packed, parts=parts, place=place), module)


def _is_transposed(module: object) -> bool:
    """Whether it is a linear layer with a weight of shape (in, out); told without importing it."""
    return type(module).__name__ == "Conv1D" and not isinstance(module, nn.Conv1d)


def _weight(module: nn.Module) -> Tensor:
    return module.get_parameter("weight")


def _split_parameters(word: str, _: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for name, parameter in [*module.named_parameters(recurse=False)]:
        dim = weight_dim(module, word) if name == "weight" else 0
        whole = name != "weight" and word == "row"
        spread = distribute_tensor(parameter, mesh, [Replicate() if whole else Shard(dim)])
        module.register_parameter(name, nn.Parameter(spread, parameter.requires_grad))


def _around(word: str, parts: int) -> tuple[Any, Any]:
    """What is done to the input and to the output of the module, for `distribute_module`."""
    if word == "embed" or parts > 1:
        return None, None
    before: Placement = Shard(-1) if word == "row" else Replicate()
    after: Placement = Shard(-1) if word == "col" else Replicate()
    return partial(_enter, before), partial(_leave, after)


def _enter(
    placement: Placement, _: nn.Module, inputs: tuple[Tensor, ...], mesh: DeviceMesh
) -> DTensor:
    """The input as a DTensor; what the backward pass gives back is summed up for a whole one."""
    if isinstance(inputs[0], DTensor):
        return inputs[0]
    return DTensor.from_local(inputs[0], mesh, [placement], run_check=False)


def _share_input(
    mesh: DeviceMesh, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call with its first argument, by place or by name, as a DTensor."""
    if args:
        return (_enter(Replicate(), module, args, mesh), *args[1:]), options
    name, first = next(iter(options.items()))
    return args, {**options, name: _enter(Replicate(), module, (first,), mesh)}


def _leave(placement: Placement, _: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
    return output.redistribute(placements=[placement]).to_local()


def _look_up(self: nn.Embedding, tokens: Tensor, place: tuple[int, int]) -> Tensor:
    """Each process looks up the tokens whose rows it has; the sum over all is the output."""
    assert isinstance(self.weight, DTensor)
    rank, size = place
    rows = self.weight.to_local()
    local = tokens - rank * math.ceil(self.num_embeddings / size)
    here = (local >= 0) & (local < len(rows))
    vectors = functional.embedding(local.where(here, 0), rows) * here.unsqueeze(-1)
    if self.padding_idx is not None:  # its row does not learn
        vectors = vectors.where((tokens != self.padding_idx).unsqueeze(-1), vectors.detach())
    parts = DTensor.from_local(vectors, self.weight.device_mesh, [Partial()], run_check=False)
    return parts.redistribute(placements=[Replicate()]).to_local()


def _packed(self: nn.Module, x: Tensor, parts: int, place: tuple[int, int]) -> Tensor:
    """This process's share of each part of the output, side by side.

    The weight is kept in even slices, as any other, and comes from all processes at each use:
    less to send than activations, as soon as a batch has more tokens than the layer has features.
    """
    assert isinstance(self.weight, DTensor)
    dim = weight_dim(self, "col")
    weight = _own_columns(self.weight, dim, parts, place)
    bias = _own_columns(self.bias, 0, parts, place) if isinstance(self.bias, DTensor) else None
    whole = _enter(Replicate(), self, (x,), self.weight.device_mesh)
    x = whole.to_local(grad_placements=[Partial()])
    return functional.linear(x, weight.mT if dim else weight, bias)


def _own_columns(spread: DTensor, dim: int, parts: int, place: tuple[int, int]) -> Tensor:
    rank, size = place
    whole = spread.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
    shares = torch.unflatten(whole, dim, (parts, size, -1))
    return shares.select(dim + 1, rank).flatten(dim, dim + 1)
