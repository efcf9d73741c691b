"""Ready plans for known model architectures, recognized by the names of their layers."""

from collections.abc import Mapping
from typing import TypeAlias

from torch import nn

from stoker.core.errors import did_you_mean
from stoker.parallel.tensor.plan_ops import is_layer

Plan: TypeAlias = Mapping[str, str]
"""An operation for each pattern of module names; see `plan_ops`."""

READY: dict[str, Plan] = {
    "stoker": {
        "embed.tokens": "embed",
        "blocks.*.attn": "share",
        "blocks.*.attn.q": "col",
        "blocks.*.attn.k": "col",
        "blocks.*.attn.v": "col",
        "blocks.*.attn.o": "row",
        "blocks.*.mlp.up": "col",
        "blocks.*.mlp.down": "row",
        "head": "gather",
    },
    "llama": {
        "model.embed_tokens": "embed",
        "model.layers.*.self_attn": "share",
        "model.layers.*.self_attn.q_proj": "col",
        "model.layers.*.self_attn.k_proj": "col",
        "model.layers.*.self_attn.v_proj": "col",
        "model.layers.*.self_attn.o_proj": "row",
        "model.layers.*.mlp": "share",
        "model.layers.*.mlp.gate_proj": "col",
        "model.layers.*.mlp.up_proj": "col",
        "model.layers.*.mlp.down_proj": "row",
        "lm_head": "gather",
    },
    "gpt2": {
        "transformer.wte": "embed",
        "transformer.h.*.attn.c_attn": "col:3",
        "transformer.h.*.attn.split_size": "divide",
        "transformer.h.*.attn.c_proj": "row",
        "transformer.h.*.mlp.c_fc": "col",
        "transformer.h.*.mlp.c_proj": "row",
        "lm_head": "gather",
    },
}
"""Plans for `stoker.nn.Transformer`, and for Llama and GPT-2 of transformers. Embedding and head
are split if the model has them; all other patterns must match."""


def ready_plan(model: nn.Module, name: str = "auto") -> Plan:
    """Return the ready plan of that name, or for "auto" the one that fits the model.

    Raises:
        ValueError: there is no such plan, or none fits the model. The message shows an example.
    """
    if name != "auto" and name not in READY:
        known = ["auto", *READY]
        hint = did_you_mean(name, known)
        raise ValueError(f"there is no plan named {name!r}{hint} (plans: {', '.join(known)})")
    reasons = []
    for candidate in READY if name == "auto" else [name]:
        plan = READY[candidate]
        missing = [p for p in plan if "*" in p and not targets(model, p)]
        found = {p: operation for p, operation in plan.items() if targets(model, p)}
        unknown = _unknown_parameters(model, found)
        if not missing and not unknown:
            return found
        if name == candidate or not missing:
            reasons.append(_reason(candidate, missing, unknown))
    raise ValueError(_no_plan(model, reasons))


def targets(model: nn.Module, pattern: str) -> list[str]:
    """Return the names that match a pattern: modules, or integer attributes of modules."""
    modules = dict(model.named_modules())
    if found := [name for name in modules if name and matches(pattern, name)]:
        return found
    parent, _, attribute = pattern.rpartition(".")
    return [
        f"{name}.{attribute}".removeprefix(".")
        for name, module in modules.items()
        if matches(parent, name) and isinstance(getattr(module, attribute, None), int)
    ]


def matches(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern; ``*`` stands for one part of the name."""
    pieces, parts = pattern.split("."), name.split(".")
    return len(pieces) == len(parts) and all(
        piece in ("*", part) for piece, part in zip(pieces, parts, strict=True)
    )


def _unknown_parameters(model: nn.Module, plan: Plan) -> list[str]:
    """Return parameters next to split layers that the plan does not name.

    An example is a norm over single heads: each process would compute another gradient for it.
    """
    layers = [p for p, operation in plan.items() if "*" in p and operation != "share"]
    split = {name for pattern in layers for name in targets(model, pattern)}
    parents = tuple(f"{name.rpartition('.')[0]}." for name in split)
    names = (name for name, _ in model.named_parameters())
    return [n for n in names if n.startswith(parents) and n.rpartition(".")[0] not in split]


def _reason(name: str, missing: list[str], unknown: list[str]) -> str:
    if missing:
        return f"the plan {name!r} expects {missing[0]!r}"
    return f"the plan {name!r} does not know {unknown[0]!r}, which runs between split layers"


def _no_plan(model: nn.Module, reasons: list[str]) -> str:
    layers = [name for name, module in model.named_modules() if name and is_layer(module)]
    parent = layers[0].rpartition(".")[0] if layers else ""
    found = [as_pattern(name) for name in layers if name.rpartition(".")[0] == parent]
    plan = {found[0]: "col", found[-1]: "row"} if len(found) > 1 else dict.fromkeys(found, "gather")
    because = f" ({'; '.join(reasons)})" if reasons else ""
    example = f", such as {plan}" if plan else ""
    return (
        f"there is no ready plan for {type(model).__name__}{because}: pass one as a mapping of "
        f"layer names to operations{example}"
    )


def as_pattern(name: str) -> str:
    """Return the name of a layer with ``*`` for the number of its block."""
    *parents, last = name.split(".")
    return ".".join([*("*" if part.isdigit() else part for part in parents), last])
