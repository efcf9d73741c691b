"""Optimizers and groups of parameters."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from stoker.dialects.libai.config import accepts, instantiate
from stoker.nn import parameter_groups


def build_optimizer(cfg: Any, model: nn.Module) -> Any:
    """Build the optimizer that a config describes, for the parameters of a model.

    ``params`` describes groups of parameters, as a call that takes the model; without it, all
    parameters are one group.
    """
    cfg = cfg.copy()
    groups = cfg.pop("params", cfg.pop("parameters", None))  # older versions of OneFlow
    corrects = accepts(cfg, "do_bias_correction") or cfg.pop("do_bias_correction", True)
    if not corrects:
        raise ValueError(
            "optim.do_bias_correction is False, and torch's optimizers always correct the bias: "
            "leave it out, or use an optimizer that takes do_bias_correction"
        )
    if groups is None:
        return instantiate(cfg, params=model.parameters())
    return instantiate(cfg, params=instantiate(groups, model=model))


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


def _expand_param_groups(params: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one group per parameter, with the options of all groups that it is in."""
    found: dict[Any, dict[str, Any]] = {}
    for group in params:
        for parameter in group["params"]:
            found.setdefault(parameter, {}).update({**group, "params": [parameter]})
    return list(found.values())


def reduce_param_groups(params: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Merge groups with the same options."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for group in _expand_param_groups(params):
        options = {key: value for key, value in group.items() if key != "params"}
        merged = found.setdefault(tuple(options.items()), {**options, "params": []})
        merged["params"] += group["params"]
    return list(found.values())
