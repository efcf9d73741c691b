"""Split layers over processes by a plan."""

import math
import re
from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from stoker.core.errors import did_you_mean
from stoker.parallel.tensor.plan_ops import (
    OPERATIONS,
    features,
    is_embedding,
    is_layer,
    split,
    weight_dim,
)
from stoker.parallel.tensor.ready_plans import Plan, as_pattern, ready_plan, targets

Operations: TypeAlias = dict[str, tuple[str, int]]
"""For each layer name, the operation and the number of parts side by side in the layer."""


def split_layers(model: nn.Module, mesh: DeviceMesh, plan: Plan | str = "auto") -> None:
    """Split layers of the model over the processes of a mesh, in place, by a plan.

    The weights are those of the first process. The parameters of layers that the plan names become
    DTensors; all others stay plain, and equal on all processes as long as these read the same
    batches and draw the same random numbers.

    Args:
        model: the model; its names do not change.
        mesh: a mesh of one dimension.
        plan: an operation of `plan_ops` for each pattern of module names,
            ``{"blocks.*.attn.q": "col", "blocks.*.attn.o": "row"}``, or the name of a ready plan.

    Raises:
        ValueError: the plan does not fit the model or the number of processes; nothing is changed.
    """
    operations = check_plan(model, mesh.size(), plan)
    modules = dict(model.named_modules())
    ties = _ties(model)
    for name, (operation, parts) in operations.items():
        if operation == "divide":
            module, attribute = _owner(model, name)
            setattr(module, attribute, getattr(module, attribute) // mesh.size())
        else:
            split(modules[name], operation, parts, mesh)
    _tie(modules, ties)
    _broadcast_unsplit(model, mesh)


def check_plan(model: nn.Module, processes: int, plan: Plan | str = "auto") -> Operations:
    """Return the operations that `split_layers` would apply on that many processes.

    Raises:
        ValueError: the plan does not fit the model or the number of processes.
    """
    operations = _resolve(model, ready_plan(model, plan) if isinstance(plan, str) else plan)
    for name, (operation, parts) in operations.items():
        _check(model, name, operation, parts, processes)
    _check_pairs(operations)
    for names in _ties(model):
        _check_tie(model, operations, names)
    return operations


def _resolve(model: nn.Module, plan: Plan) -> Operations:
    """Return the operation for every name that a pattern of the plan matches."""
    operations: Operations = {}
    for pattern, given in plan.items():
        operation, _, parts = given.partition(":")
        if given not in OPERATIONS and not re.fullmatch(r"col:[1-9]\d*", given):
            hint = did_you_mean(operation, OPERATIONS) if operation not in OPERATIONS else ""
            raise ValueError(
                f"the plan has {given!r} for {pattern!r}, which is not an operation{hint} "
                f"(operations: {', '.join(OPERATIONS)})"
            )
        found = targets(model, pattern)
        if not found:
            hint = did_you_mean(pattern, _layer_names(model, pattern))
            raise ValueError(f"the plan names {pattern!r}, but the model has no such layer{hint}")
        for name in found:
            if name in operations:
                raise ValueError(f"the plan has two patterns for {name}: {pattern!r} is the second")
            operations[name] = (operation, int(parts or 1))
    return operations


def _check(model: nn.Module, name: str, operation: str, parts: int, size: int) -> None:
    """Raise an error if the operation cannot be applied to the module or number of this name."""
    owner, last = _owner(model, name)
    thing = getattr(owner, last)
    is_expected, expected = _EXPECTED.get(
        operation, (is_layer, "a Linear or a Conv1D of transformers")
    )
    if not is_expected(thing):
        raise ValueError(f'{name} is {_describe(thing)}, expected {expected} for "{operation}"')
    if operation == "share":
        return
    if operation in ("embed", "gather"):  # may be uneven, since the output is complete
        rows = features(thing, operation)
        if math.ceil(rows / size) * (size - 1) >= rows:
            raise ValueError(f"{name} has {rows} rows, too few for {size} processes")
        return
    count = thing if operation == "divide" else features(thing, operation)
    head = getattr(owner, "head_dim", None) if operation != "divide" else None
    if count % (size * parts):
        width = f"{count} wide" + (f" in {parts} parts" if parts > 1 else "")
    elif isinstance(head, int) and count // parts % (head * size):
        width = f"{count // parts / head:g} heads wide"
    else:
        return
    raise ValueError(f"{name} is {width}, which does not divide evenly by {size} processes")


_EXPECTED: dict[str, tuple[Callable[[object], bool], str]] = {
    "share": (lambda thing: isinstance(thing, nn.Module), "a module"),
    "divide": (lambda thing: isinstance(thing, int), "an integer"),
    "embed": (is_embedding, "an Embedding without max_norm, sparse or scale_grad_by_freq"),
}


def _check_pairs(operations: Operations) -> None:
    """Raise an error for a layer with a split output or input that has no partner nearby."""
    for one, partner in (("col", "row"), ("row", "col")):
        partners = [name for name, (operation, _) in operations.items() if operation == partner]
        for name in (name for name, (operation, _) in operations.items() if operation == one):
            prefix = "".join(f"{part}." for part in name.split(".")[:-2])
            if not any(other.startswith(prefix) for other in partners):
                raise ValueError(
                    f'{name} is split by "{one}", but no layer near it by "{partner}": a "row" '
                    'takes the split output of a "col" (use "gather" for a single layer)'
                )


def _ties(model: nn.Module) -> list[list[str]]:
    """Return the names of tied parameters, in one list for each."""
    found: dict[int, list[str]] = {}
    for parent, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            found.setdefault(id(parameter), []).append(f"{parent}.{name}".removeprefix("."))
    return [names for names in found.values() if len(names) > 1]


def _check_tie(model: nn.Module, operations: Operations, names: list[str]) -> None:
    def split_dim(name: str) -> int | None:
        layer, _, parameter = name.rpartition(".")
        operation, _ = operations.get(layer, ("share", 1))
        if operation == "share":
            return None
        return weight_dim(model.get_submodule(layer), operation) if parameter == "weight" else 0

    if len({split_dim(name) for name in names}) > 1:
        raise ValueError(
            f"{' and '.join(names)} are one parameter: the plan must split these layers in the "
            "same dimension, or none of them"
        )


def _tie(modules: dict[str, nn.Module], ties: list[list[str]]) -> None:
    for first, *others in ties:
        module, _, name = first.rpartition(".")
        parameter = modules[module].get_parameter(name)
        for other in others:
            module, _, name = other.rpartition(".")
            modules[module].register_parameter(name, parameter)


@torch.no_grad()
def _broadcast_unsplit(model: nn.Module, mesh: DeviceMesh) -> None:
    """Copy parameters and buffers that are not split from the first process."""
    group = mesh.get_group()
    for tensor in (*model.parameters(), *model.buffers()):
        if not isinstance(tensor, DTensor):
            sent = tensor.contiguous()
            dist.broadcast(sent, group=group, group_src=0)
            tensor.copy_(sent)


def _layer_names(model: nn.Module, pattern: str) -> list[str]:
    """Return the layers of the model, as patterns if the given one has a ``*``."""
    names = [name for name, _ in model.named_modules() if name]
    return [as_pattern(name) for name in names] if "*" in pattern else names


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    parent, _, last = name.rpartition(".")
    return model.get_submodule(parent), last


def _describe(thing: object) -> str:
    kind = type(thing).__name__
    return f"{'an' if kind[0] in 'AEIOaeio' else 'a'} {kind}"
