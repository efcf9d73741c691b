"""Clipping: how large a gradient may be."""

from collections.abc import Collection

from torch import Tensor
from torch.optim import Optimizer

from stoker.parallel import ParallelModel


def clip_gradients(
    optimizers: Collection[Optimizer],
    parallel_model: ParallelModel,
    *,
    norm: float | None,
    value: float | None,
    norm_type: float,
) -> Tensor | None:
    """Clip by value, then by norm; the total norm before it, where one was bounded.

    Parameter groups with a "clip_norm" of their own are clipped by themselves and stay out of
    the common norm.
    """
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if value:
        parallel_model.clip_grad_value([p for group in groups for p in group["params"]], value)
    for group in groups:
        if group.get("clip_norm"):
            kind = group.get("norm_type", norm_type)
            parallel_model.clip_grad_norm(group["params"], group["clip_norm"], kind)
    if not norm:
        return None
    common = [p for group in groups if "clip_norm" not in group for p in group["params"]]
    return parallel_model.clip_grad_norm(common, norm, norm_type)
