"""Plans for models of transformers: their own, or derived from attention and MLP blocks."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TypeAlias

from torch import nn

from stoker.parallel.tensor.plan_ops import (
    are_experts,
    features,
    is_embedding,
    is_layer,
    is_table,
)

Plan: TypeAlias = Mapping[str, str]
"""An operation for each pattern of module names; see `plan_ops`."""

_STYLES = {
    "colwise": "col",
    "rowwise": "row",
    "colwise_gather_output": "gather",
    "colwise_rep": "gather",
    "replicated_with_grad_allreduce": "sum",
    "embedding_rowwise": "embed",
    "moe_tp_experts": "experts",
}
"""The styles of transformers, and the operations that do the same."""

_QUERY = ("q", "query", "q_proj", "q_lin", "query_proj", "to_q", "wq")
_KEY = ("k", "key", "k_proj", "k_lin", "key_proj", "to_k", "wk")
_VALUE = ("v", "value", "v_proj", "v_lin", "value_proj", "to_v", "wv")
_FUSED = ("c_attn", "qkv", "qkv_proj", "query_key_value", "Wqkv", "in_proj")

_HEAD_SIZES = ("head_dim", "attention_head_size", "key_value_proj_dim", "head_size", "dim_head")

_DIVIDED = (
    (),
    ("num_heads", "n_heads", "n_head", "num_attention_heads", "split_size", "inner_dim"),
    ("embed_dim", "hidden_size", "all_head_size"),
    ("num_key_value_heads", "num_kv_heads"),
)
"""Numbers of attention modules that may have to be divided, in steps: a model that computes its
shapes from its input needs none."""


def model_plans(model: nn.Module, processes: int) -> Iterator[Plan]:
    """Yield plans for a model that may be right, most likely first. Check each before use.

    The first is the model's own, if transformers has one; the others are derived from the layers
    of its attention and MLP blocks, and the last ones leave attention out.
    """
    own = _own_plan(model)
    derived = [_derive(model, fused) for fused in ("col:3", "col", None)]
    found = [*([own] if own else []), *derived]
    blocks = [plan for number, plan in enumerate(found) if plan and plan not in found[:number]]
    for plan in blocks:
        ends = _embedding_and_head(model, plan)
        for number in range(len(_DIVIDED)):
            names = [name for step in _DIVIDED[: number + 1] for name in step]
            divided = _numbers(model, plan, names)
            if number and not divided:
                continue
            full = {**plan, **_fit_heads(model, plan, processes), **divided}
            for further in (ends, {}) if ends else ({},):
                yield {**full, **_shared(plan), **further}
                yield {**full, **further}


def splits_attention(names: Iterable[str]) -> bool:
    """Return whether some of these layers compute queries."""
    return any(name.rpartition(".")[2] in _QUERY + _FUSED for name in names)


def head_size(module: nn.Module) -> int | None:
    """Return the width of a head of an attention module; None if it does not say."""
    found = (getattr(module, name, None) for name in _HEAD_SIZES)
    return next((size for size in found if isinstance(size, int)), None)


def _own_plan(model: nn.Module) -> Plan | None:
    """Return the plan that transformers has for a model; None if there is none or no equivalent."""
    given = getattr(model, "_tp_plan", None)
    if not isinstance(given, Mapping) or not given:
        return None
    found = {}
    for name, module in model.named_modules():
        style = given.get(_generic(name))
        if style is not None and style not in _STYLES:
            return None
        if style is None or (style == "moe_tp_experts" and not are_experts(module)):
            continue
        found[name] = _STYLES[style]
    return {n: o for n, o in found.items() if o not in ("gather", "embed")}


def _generic(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _derive(model: nn.Module, fused: str | None) -> Plan:
    """Return a plan for attention and MLP blocks; if ``fused`` is None, for MLP blocks only."""
    attention: dict[str, str] = {}
    for name, module in model.named_modules():
        attention.update(_attention(model, name, module, fused or "col"))
    inside = tuple(f"{name.rpartition('.')[0]}." for name, op in attention.items() if op != "row")
    plan = dict(attention)
    for name, module in model.named_modules():
        if not f"{name}.".startswith(inside):
            plan.update({name: "experts"} if are_experts(module) else _mlp(name, module, plan))
    return {n: op for n, op in plan.items() if fused is not None or n not in attention}


def _attention(model: nn.Module, name: str, module: nn.Module, fused: str) -> Plan:
    """Return the operations for a module with layers for q, k and v; none if it has other parts."""
    children = dict(module.named_children())
    roles = [next((n for n in names if n in children), None) for names in (_QUERY, _KEY, _VALUE)]
    packed = next((n for n in _FUSED if n in children), None)
    if None not in roles:
        inputs = {str(role): "col" for role in roles}
        width = features(children[str(roles[0])], "col") if is_layer(children[str(roles[0])]) else 0
    elif packed is not None and is_layer(children[packed]):
        inputs = {packed: fused}
        width = features(children[packed], "col") // 3
    else:
        return {}
    layers = {n: children[n] for n in inputs}
    output = _output_layer(model, name, set(inputs), width)
    if output is None or not all(is_layer(layer) for layer in layers.values()):
        return {}
    inner = _inner_parts(module, {*inputs, output.removeprefix(f"{name}.")}, width)
    if inner is None:
        return {}
    return {**{f"{name}.{n}": op for n, op in (inputs | inner).items()}, output: "row"}


def _output_layer(model: nn.Module, name: str, inputs: set[str], width: int) -> str | None:
    """Return the name of the layer that takes the heads: in the module, or in one next to it."""
    for scope in (name, name.rpartition(".")[0]):
        for inner, layer in model.get_submodule(scope).named_modules():
            full = f"{scope}.{inner}" if scope else inner
            is_input = full.startswith(f"{name}.") and full.removeprefix(f"{name}.") in inputs
            if is_layer(layer) and not is_input and features(layer, "row") == width:
                return full
    return None


def _inner_parts(module: nn.Module, known: set[str], width: int) -> dict[str, str] | None:
    """Return operations for further parts with parameters in attention; None if one is unknown."""
    size = head_size(module)
    if module._parameters:
        return None
    found = {}
    for name, child in module.named_children():
        sizes = {parameter.shape for parameter in child.parameters()}
        if name in known or not sizes or any(n.startswith(f"{name}.") for n in known):
            continue
        if size is not None and all(shape == (size,) for shape in sizes):
            found[name] = "sum"  # a norm of single heads
        elif size is not None and is_table(child) and features(child, "col") == width // size:
            found[name] = "col"  # a table with a column for each head
        else:
            return None
    return found


def _mlp(name: str, module: nn.Module, known: Iterable[str]) -> Plan:
    """Return the operations for a module of two layers, or of two modules with one layer each.

    The model itself is not such a module, nor is attention: their layers only look like a pair.
    """
    prefix = f"{name}."
    own = _layers(module)
    attention = {*_QUERY, *_KEY, *_VALUE, *_FUSED} & {*own}
    if not name or attention or {prefix + n for n in own} & {*known}:
        return {}
    if len(own) > 1 and len(own) == len([c for c in module.children() if _has_parameters(c)]):
        *ups, (last, down) = own.items()
        fits = {prefix + n: _fit(layer, down) for n, layer in ups}
        cols = {n: f"col:{parts}" if parts > 1 else "col" for n, parts in fits.items() if parts}
        return {**cols, prefix + last: "row"} if cols else {}
    single = [
        (f"{child}.{n}", layer)
        for child, part in module.named_children()
        if len(found := _layers(part)) == 1 and not isinstance(part, nn.ModuleList)
        for n, layer in found.items()
        if f"{prefix}{child}.{n}" not in known
    ]
    for (one, up), (other, down) in pairwise(single):
        if _fit(up, down) == 1 and features(up, "col") != features(up, "row"):
            return {prefix + one: "col", prefix + other: "row"}
    return {}


def _layers(module: nn.Module) -> dict[str, nn.Module]:
    return {name: child for name, child in module.named_children() if is_layer(child)}


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _fit(up: nn.Module, down: nn.Module) -> int:
    """Return how many inputs of a layer another returns, 1 or 2 (one is a gate); 0 if neither.

    The width before both layers must be that after them.
    """
    parts, rest = divmod(features(up, "col"), features(down, "row"))
    is_same = features(up, "row") == features(down, "col")
    return parts if is_same and not rest and parts in (1, 2) else 0


def _fit_heads(model: nn.Module, plan: Plan, processes: int) -> Plan:
    """Return operations for keys and values that have fewer heads than there are processes."""
    changed = {}
    for name in (name for name, operation in plan.items() if operation == "col"):
        parent, _, child = name.rpartition(".")
        owner = model.get_submodule(parent)
        size, groups = head_size(owner), getattr(owner, "num_key_value_groups", None)
        if child not in _KEY + _VALUE or size is None or not isinstance(groups, int):
            continue
        heads = features(model.get_submodule(name), "col") // size
        copies = processes // heads if heads else 0
        if heads < processes == copies * heads and groups % copies == 0:
            changed[name] = f"repeat:{heads}"
            changed[f"{parent}.num_key_value_groups"] = f"divide:{copies}"
    return changed


def _numbers(model: nn.Module, plan: Plan, names: Iterable[str]) -> Plan:
    """Return the operations that divide numbers of attention modules."""
    parents = {n.rpartition(".")[0] for n, op in plan.items() if op.startswith("col")}
    attention = {parent: model.get_submodule(parent) for parent in sorted(parents)}
    return {
        f"{parent}.{name}": "divide"
        for parent, module in attention.items()
        for name in names
        if head_size(module) is not None and isinstance(getattr(module, name, None), int)
    }


def _shared(plan: Plan) -> Plan:
    """Return the modules in which several layers take the same input."""
    parents = [name.rpartition(".")[0] for name, operation in plan.items() if operation == "col"]
    return {parent: "share" for parent in parents if parent and parents.count(parent) > 1}


def _embedding_and_head(model: nn.Module, plan: Plan) -> Plan:
    """Return operations for the table of tokens and the head of scores, and what is tied to them.

    There are none if they can only be split together, and one of them cannot.
    """
    tokens = _call(model, "get_input_embeddings"), _call(model, "get_output_embeddings")
    weights = [id(m.weight) for m in tokens if m is not None and hasattr(m, "weight")]
    found = {}
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if weight is None or id(weight) not in weights or name in plan:
            continue
        if is_embedding(module):
            found[name] = "embed"
        elif isinstance(module, nn.Linear):
            found[name] = "gather"
        else:
            return {}
    return found


def _call(model: nn.Module, name: str) -> nn.Module | None:
    method = getattr(model, name, None)
    try:
        found = method() if callable(method) else None
    except NotImplementedError:  # a model of transformers that has none
        return None
    return found if isinstance(found, nn.Module) else None
