"""`parameter_groups`: options of an optimizer that are not alike for all parameters."""

from collections.abc import Mapping
from typing import Any

from torch import nn

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)


def parameter_groups(
    model: nn.Module,
    options: Mapping[str, Any] | None = None,
    *,
    norms: Mapping[str, Any] | None = None,
    biases: Mapping[str, Any] | None = None,
    named: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """The trainable parameters of a model in groups of equal options, for any torch optimizer.

    >>> AdamW(parameter_groups(model, norms={"weight_decay": 0.0}, biases={"weight_decay": 0.0}))

    What is None is left to the optimizer. With ``clip_norm`` an `Engine` clips a group by itself.

    Args:
        model: whose parameters.
        options: options for all.
        norms: options for those of normalisation layers.
        biases: options for those named "bias", also of normalisation layers.
        named: options by the last part of a parameter's name.
    """
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    seen: set[nn.Parameter] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or parameter in seen:
                continue
            seen.add(parameter)
            norm = norms if isinstance(module, _NORMS) else None
            bias = biases if name == "bias" else None
            kept: dict[str, Any] = {}
            for said in (options, norm, bias, (named or {}).get(name)):
                kept |= {key: value for key, value in (said or {}).items() if value is not None}
            group = groups.setdefault(tuple(kept.items()), {"params": [], **kept})
            group["params"].append(parameter)
    return list(groups.values())
