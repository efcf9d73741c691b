"""Groups of parameters."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from stoker.nn import parameter_groups


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
    """Return parameter groups; see `stoker.nn.parameter_groups`. Each is clipped separately."""
    clip = {"clip_norm": clip_grad_max_norm, "norm_type": clip_grad_norm_type}
    return parameter_groups(
        model,
        {"lr": base_lr, "weight_decay": weight_decay, **clip},
        norms={"weight_decay": weight_decay_norm},
        biases={"weight_decay": weight_decay_bias},
        named=overrides,
    )
