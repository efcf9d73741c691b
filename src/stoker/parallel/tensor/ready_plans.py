"""Ready plans: for `stoker.nn.Transformer`, and for models of transformers."""

from torch import nn

from stoker.core.errors import did_you_mean
from stoker.parallel.tensor.model_plans import Plan, model_plans

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
}
"""The plan for `stoker.nn.Transformer`. Embedding and head are split if the model has them; all
other patterns must match."""


def ready_plans(model: nn.Module, processes: int, name: str = "auto") -> list[Plan]:
    """Return the ready plan of that name, or for "auto" those that may fit the model.

    Raises:
        ValueError: there is no such plan, or none fits the model.
    """
    if name != "auto" and name not in READY:
        known = ["auto", *READY]
        hint = did_you_mean(name, known)
        raise ValueError(f"there is no plan named {name!r}{hint} (plans: {', '.join(known)})")
    reason = ""
    for candidate, plan in READY.items():
        missing = [p for p in plan if "*" in p and not targets(model, p)]
        if not missing:
            return [{p: operation for p, operation in plan.items() if targets(model, p)}]
        if name == candidate:
            reason = f" (the plan {name!r} expects {missing[0]!r})"
    plans = list(model_plans(model, processes)) if name == "auto" else []
    if not plans or not hasattr(model, "dummy_inputs"):  # without a batch to try, it is a guess
        raise ValueError(
            f"there is no ready plan for {type(model).__name__}{reason}: pass one as a mapping of "
            "layer names to operations, as in the documentation of tensor parallelism"
        )
    return plans


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


def as_pattern(name: str) -> str:
    """Return the name of a layer with ``*`` for the number of its block."""
    *parents, last = name.split(".")
    return ".".join([*("*" if part.isdigit() else part for part in parents), last])
