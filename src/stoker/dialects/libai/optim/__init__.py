"""Groups of parameters."""

from collections.abc import Mapping
from typing import Any

from torch import nn

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)


def get_default_optimizer_params(
    model: nn.Module,
    base_lr: float | None = None,
    weight_decay: float | None = None,
    weight_decay_norm: float | None = None,
    weight_decay_bias: float | None = None,
    clip_grad_max_norm: float | None = None,
    clip_grad_norm_type: float | None = None,
    overrides: Mapping[str, Mapping[str, float]] | None = None,
) -> list[dict[str, Any]]:
    """The parameters of a model in groups of equal options; each group is clipped by itself.

    What is None is left to the optimizer; ``overrides`` are options by the last part of a
    parameter's name.
    """
    clip = {"clip_norm": clip_grad_max_norm, "norm_type": clip_grad_norm_type}
    common = {"lr": base_lr, "weight_decay": weight_decay, **clip}
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    seen: set[nn.Parameter] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or parameter in seen:
                continue
            seen.add(parameter)
            own = {"weight_decay": weight_decay_norm if isinstance(module, _NORMS) else None}
            if name == "bias" and weight_decay_bias is not None:
                own = {"weight_decay": weight_decay_bias}
            given = {**common, **{k: v for k, v in own.items() if v is not None}}
            given |= (overrides or {}).get(name, {})
            options = {key: value for key, value in given.items() if value is not None}
            group = groups.setdefault(tuple(options.items()), {"params": [], **options})
            group["params"].append(parameter)
    return list(groups.values())
