"""Layers split over processes, by a plan."""

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
    WORDS,
    features,
    is_embedding,
    is_layer,
    split,
    weight_dim,
)
from stoker.parallel.tensor.ready_plans import Plan, as_pattern, ready_plan, targets

Words: TypeAlias = dict[str, tuple[str, int]]


def split_layers(model: nn.Module, mesh: DeviceMesh, plan: Plan | str = "auto") -> None:
    """Split layers of the model over the processes of a mesh, in place, as the plan says.

    The weights of the mesh's first process are taken. Layers that the plan names have DTensors
    as parameters afterwards; all others stay plain, and equal on all processes, as long as all
    are given the same batches and draw the same random numbers.

    Args:
        model: the model; its names do not change.
        mesh: a mesh of one dimension.
        plan: patterns over module names with a word for each, as in `plan_ops`:
            ``{"blocks.*.attn.q": "col", "blocks.*.attn.o": "row"}``; or the name of a ready one.

    Raises:
        ValueError: the plan does not fit the model or the number of processes; nothing is changed.
    """
    words = check_plan(model, mesh.size(), plan)
    modules = dict(model.named_modules())
    ties = _ties(model)
    for name, (word, parts) in words.items():
        if word == "divide":
            module, attribute = _owner(model, name)
            setattr(module, attribute, getattr(module, attribute) // mesh.size())
        else:
            split(modules[name], word, parts, mesh)
    _tie(modules, ties)
    _make_equal(model, mesh)


def check_plan(model: nn.Module, processes: int, plan: Plan | str = "auto") -> Words:
    """What `split_layers` would do to the model on so many processes.

    Returns:
        For every layer, by name, its word and how many parts stand side by side in it.

    Raises:
        ValueError: the plan does not fit the model or the number of processes.
    """
    words = _words(model, ready_plan(model, plan) if isinstance(plan, str) else plan)
    for name, (word, parts) in words.items():
        _check(model, name, word, parts, processes)
    _check_pairs(words)
    for names in _ties(model):
        _check_tie(model, words, names)
    return words


def _words(model: nn.Module, plan: Plan) -> Words:
    """For every name that the plan means, its word, and how many parts stand side by side."""
    words: Words = {}
    for pattern, said in plan.items():
        word, _, parts = said.partition(":")
        if said not in WORDS and not re.fullmatch(r"col:[1-9]\d*", said):
            near = did_you_mean(word, WORDS) if word not in WORDS else ""
            raise ValueError(
                f"the plan says {said!r} for {pattern!r}, which is no word for a layer{near} "
                f"(words: {', '.join(WORDS)})"
            )
        found = targets(model, pattern)
        if not found:
            near = did_you_mean(pattern, _names(model, pattern))
            raise ValueError(f"the plan names {pattern!r}, but the model has no such layer{near}")
        for name in found:
            if name in words:
                raise ValueError(f"the plan has two patterns for {name}: {pattern!r} is the second")
            words[name] = (word, int(parts or 1))
    return words


def _check(model: nn.Module, name: str, word: str, parts: int, size: int) -> None:
    """Refuse a word that the thing of this name cannot follow."""
    owner, last = _owner(model, name)
    thing = getattr(owner, last)
    wanted, kind = _WANTED.get(word, (is_layer, "a Linear or a Conv1D of transformers"))
    if not wanted(thing):
        raise ValueError(f'{name} is {_a(thing)}, expected {kind} for "{word}"')
    if word == "share":
        return
    if word in ("embed", "gather"):  # shares may be uneven, for the output is whole again
        rows = features(thing, word)
        if math.ceil(rows / size) * (size - 1) >= rows:
            raise ValueError(f"{name} has {rows} rows, too few for {size} processes")
        return
    count = thing if word == "divide" else features(thing, word)
    head = getattr(owner, "head_dim", None) if word != "divide" else None
    if count % (size * parts):
        wide = f"{count} wide" + (f" in {parts} parts" if parts > 1 else "")
    elif isinstance(head, int) and count // parts % (head * size):
        wide = f"{count // parts / head:g} heads wide"
    else:
        return
    raise ValueError(f"{name} is {wide}, which {size} processes cannot share evenly")


_WANTED: dict[str, tuple[Callable[[object], bool], str]] = {
    "share": (lambda thing: isinstance(thing, nn.Module), "a module"),
    "divide": (lambda thing: isinstance(thing, int), "a whole number"),
    "embed": (is_embedding, "an Embedding without max_norm, sparse or scale_grad_by_freq"),
}


def _check_pairs(words: Words) -> None:
    """Refuse a layer that gives a split output, or takes one in, without a partner nearby."""
    for word, partner in (("col", "row"), ("row", "col")):
        partners = [name for name, (said, _) in words.items() if said == partner]
        for name in (name for name, (said, _) in words.items() if said == word):
            near = "".join(f"{part}." for part in name.split(".")[:-2])
            if not any(other.startswith(near) for other in partners):
                raise ValueError(
                    f'{name} is split by "{word}", but no layer near it by "{partner}": a "row" '
                    'takes in what a "col" gives ("gather" stands alone)'
                )


def _ties(model: nn.Module) -> list[list[str]]:
    """The names of parameters that are one and the same."""
    found: dict[int, list[str]] = {}
    for above, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            found.setdefault(id(parameter), []).append(f"{above}.{name}".removeprefix("."))
    return [names for names in found.values() if len(names) > 1]


def _check_tie(model: nn.Module, words: Words, names: list[str]) -> None:
    def how(name: str) -> int | None:
        layer, _, parameter = name.rpartition(".")
        word, _ = words.get(layer, ("share", 1))
        if word == "share":
            return None
        return weight_dim(model.get_submodule(layer), word) if parameter == "weight" else 0

    if len({how(name) for name in names}) > 1:
        raise ValueError(
            f"{' and '.join(names)} are one parameter: the plan must split these layers alike, "
            "or none of them"
        )


def _tie(modules: dict[str, nn.Module], ties: list[list[str]]) -> None:
    for first, *others in ties:
        module, _, name = first.rpartition(".")
        parameter = modules[module].get_parameter(name)
        for other in others:
            module, _, name = other.rpartition(".")
            modules[module].register_parameter(name, parameter)


@torch.no_grad()
def _make_equal(model: nn.Module, mesh: DeviceMesh) -> None:
    """Give what is not split to every process as the first has it."""
    group = mesh.get_group()
    for tensor in (*model.parameters(), *model.buffers()):
        if not isinstance(tensor, DTensor):
            sent = tensor.contiguous()
            dist.broadcast(sent, group=group, group_src=0)
            tensor.copy_(sent)


def _names(model: nn.Module, pattern: str) -> list[str]:
    """The layers of the model, told as the pattern tells them."""
    names = [name for name, _ in model.named_modules() if name]
    return [as_pattern(name) for name in names] if "*" in pattern else names


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    above, _, last = name.rpartition(".")
    return model.get_submodule(above), last


def _a(thing: object) -> str:
    kind = type(thing).__name__
    return f"{'an' if kind[0] in 'AEIOaeio' else 'a'} {kind}"
