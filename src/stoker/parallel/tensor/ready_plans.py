"""Ready plans for models of known shape, told by the names of their layers."""

from collections.abc import Mapping
from typing import TypeAlias

from torch import nn

from stoker.core.errors import did_you_mean
from stoker.parallel.tensor.plan_ops import is_layer

Plan: TypeAlias = Mapping[str, str]
"""Patterns over the names of modules, and for each a word; see `plan_ops`."""

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
"""By name: `stoker.nn.Transformer`, and the Llama and GPT-2 shapes of transformers. Embedding and
head are split where the model has them; the other patterns must all be there."""


def ready_plan(model: nn.Module, name: str = "auto") -> Plan:
    """The ready plan of that name, or "auto", the one that fits the model.

    Raises:
        ValueError: there is no such plan, or none that fits; with what a plan looks like.
    """
    if name != "auto" and name not in READY:
        known = ["auto", *READY]
        near = did_you_mean(name, known)
        raise ValueError(f"there is no plan named {name!r}{near} (plans: {', '.join(known)})")
    reasons = []
    for tried in READY if name == "auto" else [name]:
        missing = [p for p in READY[tried] if "*" in p and not targets(model, p)]
        found = {p: word for p, word in READY[tried].items() if targets(model, p)}
        strangers = _strangers(model, found)
        if not missing and not strangers:
            return found
        if name == tried or not missing:
            reasons.append(_reason(tried, missing, strangers))
    raise ValueError(_refusal(model, reasons))


def targets(model: nn.Module, pattern: str) -> list[str]:
    """The names that a pattern stands for: modules, or numbers that modules have."""
    modules = dict(model.named_modules())
    if found := [name for name in modules if name and matches(pattern, name)]:
        return found
    above, _, attribute = pattern.rpartition(".")
    return [
        f"{name}.{attribute}".removeprefix(".")
        for name, module in modules.items()
        if matches(above, name) and isinstance(getattr(module, attribute, None), int)
    ]


def matches(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern; ``*`` stands for one part of it."""
    wanted, parts = pattern.split("."), name.split(".")
    return len(wanted) == len(parts) and all(
        want in ("*", part) for want, part in zip(wanted, parts, strict=True)
    )


def _strangers(model: nn.Module, plan: Plan) -> list[str]:
    """Parameters beside split layers that the plan does not know of.

    Such as a norm of single heads: each process would find a gradient of its own for it.
    """
    layers = [p for p, word in plan.items() if "*" in p and word != "share"]
    split = {name for pattern in layers for name in targets(model, pattern)}
    parents = tuple(f"{name.rpartition('.')[0]}." for name in split)
    names = (name for name, _ in model.named_parameters())
    return [n for n in names if n.startswith(parents) and n.rpartition(".")[0] not in split]


def _reason(name: str, missing: list[str], strangers: list[str]) -> str:
    if missing:
        return f"the plan {name!r} expects {missing[0]!r}"
    return f"the plan {name!r} does not know {strangers[0]!r}, which runs between split layers"


def _refusal(model: nn.Module, reasons: list[str]) -> str:
    layers = [name for name, module in model.named_modules() if name and is_layer(module)]
    home = layers[0].rpartition(".")[0] if layers else ""
    here = [as_pattern(name) for name in layers if name.rpartition(".")[0] == home]
    words = {here[0]: "col", here[-1]: "row"} if len(here) > 1 else dict.fromkeys(here, "gather")
    because = f" ({'; '.join(reasons)})" if reasons else ""
    example = f", such as {words}" if words else ""
    return (
        f"there is no ready plan for {type(model).__name__}{because}: give one as a mapping of "
        f"its layers to words{example}"
    )


def as_pattern(name: str) -> str:
    """The name of a layer with ``*`` for the number of its block."""
    *above, last = name.split(".")
    return ".".join([*("*" if part.isdigit() else part for part in above), last])
