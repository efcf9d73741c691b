"""Split layers over processes by a plan."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from stoker.core.errors import did_you_mean
from stoker.core.log import get_logger
from stoker.parallel.inner_outputs import refuse_inner_outputs
from stoker.parallel.rank_draws import RankDraws, has_dropout
from stoker.parallel.tensor import verify
from stoker.parallel.tensor.model_plans import Plan, head_size, splits_attention
from stoker.parallel.tensor.plan_ops import (
    EXPERTS,
    OPERATIONS,
    are_experts,
    features,
    is_embedding,
    is_layer,
    is_table,
    split,
    weight_dim,
)
from stoker.parallel.tensor.ready_plans import as_pattern, ready_plans, targets
from stoker.parallel.tensor.sequence import Region, block_lists, wrap, wrap_complete
from stoker.parallel.tensor.verify import Operations

_log = get_logger()


def split_layers(
    model: nn.Module,
    mesh: DeviceMesh,
    plan: Plan | str = "auto",
    *,
    sequence_parallel: bool = False,
    loss_parallel: bool = False,
) -> None:
    """Split layers of the model over the processes of a mesh, in place, by a plan.

    The weights are those of the first process. The parameters of layers that the plan names become
    DTensors; all others stay plain, and equal on all processes as long as these read the same
    batches and draw the same random numbers.

    If the model offers a batch to try (`dummy_inputs` of transformers), the plan is checked by
    values before it is applied: see `verify`.

    Args:
        model: the model; its names do not change.
        mesh: a mesh of one dimension.
        plan: an operation of `plan_ops` for each pattern of module names,
            ``{"blocks.*.attn.q": "col", "blocks.*.attn.o": "row"}``, or the name of a ready plan.
        sequence_parallel: split the sequence between layers, see `sequence`.
        loss_parallel: leave the scores of a "gather" split for the loss, see `scores`.

    Raises:
        ValueError: the plan does not fit the model or the number of processes, or computes other
            values.
    """
    candidates = _candidates(model, mesh.size(), plan)
    _broadcast(model, mesh)
    example = verify.run_example(model, least=mesh.size())
    if example is None and plan == "auto" and hasattr(model, "dummy_inputs"):
        raise ValueError(
            f"the plan for {type(model).__name__} cannot be tried, because the model does not run "
            "with its dummy_inputs: pass a plan of your own"
        )
    operations = candidates[0]
    if example is not None:
        if plan == "auto":
            candidates = [_used(operations, example) for operations in candidates]
        operations = _first_right(model, mesh, candidates, example)
    lists = _sequences(model, mesh, operations, example) if sequence_parallel else []
    if loss_parallel:
        operations = _with_scores(model, mesh, operations, example)
    _apply(mesh, model, operations, lists)
    _separate_draws(model, mesh.get_local_rank(), operations)
    if example is not None:
        try:
            verify.check_output(model, example)
        except ValueError as error:
            if not verify.changes_in_place(error.__cause__):
                raise
            _copy_outputs(model, operations)
            verify.check_output(model, example)
        if lists:
            _check_outside(model, mesh, example, lists)


def check_plan(model: nn.Module, processes: int, plan: Plan | str = "auto") -> Operations:
    """Return the operations that `split_layers` would try first on that many processes.

    Raises:
        ValueError: the plan does not fit the model or the number of processes.
    """
    return _candidates(model, processes, plan)[0]


def _candidates(model: nn.Module, processes: int, plan: Plan | str) -> list[Operations]:
    """Return what plans do with the model: those that fit its shapes, most likely first."""
    found: list[Operations] = []
    errors, of_attention = [], []
    for one in [plan] if isinstance(plan, Mapping) else ready_plans(model, processes, plan):
        try:
            operations = _checked(model, processes, one)
        except ValueError as error:
            errors.append(error)
            of_attention += [error] if splits_attention(one) else []
            continue
        found += [operations] if operations not in found else []
    if not found:
        raise errors[0]
    if of_attention and not any(map(splits_attention, found)):  # it is not left out for its shape
        raise of_attention[0]
    return found


def _checked(model: nn.Module, processes: int, plan: Plan) -> Operations:
    operations = _resolve(model, plan)
    for name, (operation, parts) in operations.items():
        _check(model, name, operation, parts, processes)
    _check_pairs(operations)
    for names in _ties(model):
        _check_tie(model, operations, names)
    return operations


def _used(operations: Operations, example: verify.Example) -> Operations:
    """Return the operations without those for layers that did not run, which cannot be tried."""
    return {
        name: (operation, parts)
        for name, (operation, parts) in operations.items()
        if operation in ("embed", "gather")
        or (name.rpartition(".")[0] if operation == "divide" else name) in example.calls
    }


def _first_right(
    model: nn.Module, mesh: DeviceMesh, candidates: list[Operations], example: verify.Example
) -> Operations:
    faults: list[str] = []
    for operations in candidates:
        apply = partial(_apply, mesh)
        fault = verify.find_fault(model, operations, apply, example, mesh.get_group())
        if fault is None:
            if faults and _rows(operations) < max(map(_rows, candidates)):
                _log.warning(
                    f"every process holds some layers of {type(model).__name__} in full, because "
                    f"they cannot be split: {faults[0]}"
                )
            return operations
        faults.append(fault)
    raise ValueError(
        f"the plan for {type(model).__name__} is wrong: {faults[0]}; pass another plan, or leave "
        "out the layers in it"
    )


def _rows(operations: Operations) -> int:
    return sum(operation == "row" for operation, _ in operations.values())


def _apply(
    mesh: DeviceMesh, model: nn.Module, operations: Operations, lists: Sequence[Sequence[str]] = ()
) -> None:
    """Split a model.

    Args:
        mesh: the processes.
        model: changed in place.
        operations: what to do, by the names of layers.
        lists: the names of blocks between which each process has a part of the sequence.
    """
    modules = dict(model.named_modules())
    ties = _ties(model)
    regions: dict[str, Region] = {}
    for blocks in lists:
        held = [modules[name] for name in blocks]
        region = Region(mesh, drops=any(map(has_dropout, held)))
        regions.update(dict.fromkeys(blocks, region))
        _divide_sequence(modules, operations, blocks, region)
        wrap(held, region)
    for name, (operation, parts) in operations.items():
        if operation == "divide":
            module, attribute = _owner(model, name)
            by = parts if parts > 1 else mesh.size()
            setattr(module, attribute, getattr(module, attribute) // by)
        else:
            found = next((r for b, r in regions.items() if _is_in(name, b)), None)
            if operation != "row" and ("share", 1) in _around(name, operations):
                found = None  # its input is complete already
            split(modules[name], operation, parts, mesh, found)
    _tie(modules, ties)


def _divide_sequence(
    modules: Mapping[str, nn.Module], operations: Operations, blocks: Sequence[str], region: Region
) -> None:
    """Prepare modules that the operations do not name, but that run on parts of the sequence."""
    experts = [name for name, (operation, _) in operations.items() if operation == "experts"]
    complete = {name.rpartition(".")[0] for name in experts}
    for name, module in modules.items():
        if not any(_is_in(name, block) for block in blocks) or name in operations:
            continue
        if name in complete:
            wrap_complete(module, region)
        elif module._parameters and not any(_is_in(name, other) for other in complete):
            split(module, "sum", 1, region.mesh)


def _is_in(name: str, block: str) -> bool:
    return not block or f"{name}.".startswith(f"{block}.")


def _around(name: str, operations: Operations) -> list[tuple[str, int]]:
    """Return the operations for the modules around a layer."""
    return [found for other, found in operations.items() if other != name and _is_in(name, other)]


def _sequences(
    model: nn.Module, mesh: DeviceMesh, operations: Operations, example: verify.Example | None
) -> list[list[str]]:
    """Return the lists of blocks to run on parts of the sequence, after one of each was tried.

    Raises:
        ValueError: there are none, or they compute other values.
    """
    rows = [name for name, (operation, _) in operations.items() if operation == "row"]
    lists = block_lists(model, rows)
    kind = type(model).__name__
    if not lists:
        raise ValueError(
            f"sequence_parallel runs a list of blocks on parts of the sequence, but {kind} has "
            "none whose layers are split: leave sequence_parallel out"
        )
    refuse_inner_outputs(model, "sequence_parallel")
    _check_example("sequence_parallel", kind, example)
    assert example is not None
    blocks = [block for one in lists for block in one]
    fault = verify.find_fault(
        model, operations, partial(_apply, mesh, lists=[[""]]), example, mesh.get_group(), blocks
    )
    if fault is not None:
        raise ValueError(f"{kind} cannot use sequence_parallel: {fault}; leave it out")
    return lists


def _check_outside(
    model: nn.Module, mesh: DeviceMesh, example: verify.Example, lists: Sequence[Sequence[str]]
) -> None:
    """Raise an error if the model does more with a part of a sequence than run its blocks."""
    blocks = [block for one in lists for block in one]
    outside = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        and not isinstance(parameter, DTensor)
        and not any(_is_in(name, block) for block in blocks)
    }
    name = verify.find_different_gradient(model, example, outside, mesh.get_group())
    if name is not None:
        raise ValueError(
            f"{type(model).__name__} cannot use sequence_parallel: it uses {name!r} between its "
            "blocks, where each process has a part of the sequence; leave it out"
        )


def _with_scores(
    model: nn.Module, mesh: DeviceMesh, operations: Operations, example: verify.Example | None
) -> Operations:
    """Return the operations with heads that leave scores split for the loss, after a trial.

    Raises:
        ValueError: there are no heads, or they compute other values.
    """
    heads = [name for name, (operation, _) in operations.items() if operation == "gather"]
    kind = type(model).__name__
    if not heads:
        raise ValueError(
            f"loss_parallel leaves the scores of a head split, but the plan for {kind} has no "
            '"gather": leave loss_parallel out'
        )
    _check_example("loss_parallel", kind, example)
    assert example is not None
    changed = {**operations, **dict.fromkeys(heads, ("scores", 1))}
    group = mesh.get_group()
    fault = verify.find_fault(
        model, changed, partial(_apply, mesh), example, group, heads, loss=verify.cross_entropy
    )
    if fault is not None:
        raise ValueError(f"{kind} cannot use loss_parallel: {fault}; leave it out")
    return changed


def _check_example(option: str, kind: str, example: verify.Example | None) -> None:
    if example is None:
        raise ValueError(
            f"{option} is tried before it is used, but {kind} does not offer a batch: give it a "
            f"property dummy_inputs with keyword arguments of its forward, or leave {option} out"
        )


def _copy_outputs(model: nn.Module, operations: Operations) -> None:
    """Let layers return copies, for a model that adds to their output in place."""
    for name, (operation, _) in operations.items():
        if operation not in ("share", "sum", "divide"):
            model.get_submodule(name).register_forward_hook(lambda _, __, output: output.clone())


def _separate_draws(model: nn.Module, rank: int, operations: Operations) -> None:
    """Let each process draw other random numbers between a "col" and its "row"."""
    draws = RankDraws(rank)
    split = [name for name, (operation, _) in operations.items() if operation in ("col", "repeat")]

    def begin(module: nn.Module, _: Any, output: Tensor) -> None:
        if module.training:
            draws.begin(output.device)

    for row in (name for name, (operation, _) in operations.items() if operation == "row"):
        region = verify.enclosing(row, split)
        if not has_dropout(model.get_submodule(region)):
            continue
        for name in (name for name in split if name.startswith(f"{region}.".lstrip("."))):
            model.get_submodule(name).register_forward_hook(begin)
        model.get_submodule(row).register_forward_pre_hook(lambda *_: draws.end())


_WITH_NUMBER = r"(col|repeat|divide):[1-9]\d*"


def _resolve(model: nn.Module, plan: Plan) -> Operations:
    """Return the operation for every name that a pattern of the plan matches."""
    operations: dict[str, tuple[str, int]] = {}
    for pattern, given in plan.items():
        operation, _, parts = given.partition(":")
        if given not in OPERATIONS and not re.fullmatch(_WITH_NUMBER, given):
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
    if operation in ("share", "sum"):
        return
    if operation in ("embed", "gather"):  # may be uneven, since the output is complete
        rows = features(thing, operation)
        if math.ceil(rows / size) * (size - 1) >= rows:
            raise ValueError(f"{name} has {rows} rows, too few for {size} processes")
        return
    width = _odd_width(thing, operation, parts, size, owner)
    if width is not None:
        raise ValueError(f"{name} is {width}, which does not divide evenly by {size} processes")


def _odd_width(thing: Any, operation: str, parts: int, size: int, owner: nn.Module) -> str | None:
    """Describe the width of a layer or number if it cannot be split evenly."""
    if operation == "experts":
        count = int(thing.down_proj.shape[-1])
    else:
        count = thing if operation == "divide" else features(thing, operation)
    if operation == "repeat":
        return f"{parts} heads wide" if count % parts or size % parts else None
    if operation == "divide" and parts > 1:
        size, parts = parts, 1
    if count % (size * parts):
        return f"{count} wide" + (f" in {parts} parts" if parts > 1 else "")
    head = head_size(owner) if operation in ("col", "row") and is_layer(thing) else None
    if head is not None and count // parts % (head * size):
        return f"{count // parts / head:g} heads wide"
    return None


_EXPECTED: dict[str, tuple[Callable[[object], bool], str]] = {
    "col": (
        lambda thing: is_layer(thing) or is_table(thing),
        "a Linear, a Conv1D of transformers or an Embedding",
    ),
    "share": (lambda thing: isinstance(thing, nn.Module), "a module"),
    "sum": (lambda thing: isinstance(thing, nn.Module), "a module"),
    "divide": (lambda thing: isinstance(thing, int), "an integer"),
    "embed": (is_embedding, "an Embedding without max_norm, sparse or scale_grad_by_freq"),
    "experts": (are_experts, "a module with gate_up_proj and down_proj"),
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
    dims = {_split_dim(model, operations, name) for name in names}
    if len(dims) == 2 and None in dims:  # some modules hold a parameter for a layer within them
        split = [n for n in names if _split_dim(model, operations, n) is not None]
        held = [n.rpartition(".")[0] for n in names if n not in split]
        dims -= {None} if all(any(s.startswith(f"{h}.") for s in split) for h in held) else set()
    if len(dims) > 1:
        raise ValueError(
            f"{' and '.join(names)} are one parameter: the plan must split these layers in the "
            "same dimension, or none of them"
        )


def _split_dim(model: nn.Module, operations: Operations, name: str) -> int | None:
    """Return the dimension in which operations split a parameter; None if they do not."""
    layer, _, parameter = name.rpartition(".")
    operation, _ = operations.get(layer, ("share", 1))
    if operation in ("share", "sum") or (operation == "row" and parameter != "weight"):
        return None
    if operation == "experts":
        return EXPERTS[parameter]
    return weight_dim(model.get_submodule(layer), operation) if parameter == "weight" else 0


def _tie(modules: dict[str, nn.Module], ties: list[list[str]]) -> None:
    for names in ties:
        owners = [(modules[module], name) for module, _, name in (n.rpartition(".") for n in names)]
        found = [module.get_parameter(name) for module, name in owners]
        chosen = next((p for p in found if isinstance(p, DTensor)), found[0])
        for module, name in owners:
            module.register_parameter(name, chosen)


@torch.no_grad()
def _broadcast(model: nn.Module, mesh: DeviceMesh) -> None:
    """Copy parameters and buffers from the first process."""
    group = mesh.get_group()
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_meta:
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
