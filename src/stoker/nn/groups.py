"""`parameter_groups`: give parameters different optimizer options."""

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
    """Return the trainable parameters of a model in groups of equal options.

    >>> AdamW(parameter_groups(model, norms={"weight_decay": 0.0}, biases={"weight_decay": 0.0}))

    The optimizer's default applies where an option is None. An `Engine` clips a group with
    ``clip_norm`` separately.

    Args:
        model: the model.
        options: options for all parameters.
        norms: options for parameters of normalization layers.
        biases: options for parameters named "bias", including those of normalization layers.
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
            merged: dict[str, Any] = {}
            for given in (options, norm, bias, (named or {}).get(name)):
                merged |= {key: value for key, value in (given or {}).items() if value is not None}
            group = groups.setdefault(tuple(merged.items()), {"params": [], **merged})
            group["params"].append(parameter)
    return list(groups.values())
