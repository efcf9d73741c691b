"""Losses, metrics, optimizers and layers: those of torch, with the names of Colossal-AI.

Layers are split over processes by the layout and not by themselves, so `Linear` is torch's.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch import nn as _torch_nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint as _checkpoint


class CrossEntropyLoss(_torch_nn.CrossEntropyLoss):
    """torch's loss; ``reduction`` may be True ("mean") or False ("none")."""

    def __init__(self, reduction: bool | str = True, **kwargs: Any) -> None:
        named = reduction if isinstance(reduction, str) else "mean" if reduction else "none"
        super().__init__(reduction=named, **kwargs)


def calc_acc(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the number of samples whose largest output is at the target."""
    return (logits.argmax(-1) == targets).sum()


class Accuracy(_torch_nn.Module):
    """Count correct samples, for ``AccuracyHook(accuracy_func=Accuracy())``."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the number of correct samples."""
        return calc_acc(logits, targets)


class CheckpointModule(_torch_nn.Module):
    """Define `_forward`; with ``checkpoint`` its activations are computed again in backward."""

    def __init__(self, checkpoint: bool = True, offload: bool = False) -> None:
        super().__init__()
        if offload:
            raise ValueError("CheckpointModule cannot offload activations: remove offload=True")
        self.checkpoint = checkpoint

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define _forward")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call `_forward`."""
        if self.checkpoint and self.training:
            return _checkpoint(self._forward, *args, use_reentrant=False, **kwargs)
        return self._forward(*args, **kwargs)


class FusedAdam(torch.optim.Adam):
    """torch's Adam, by default with decoupled weight decay (AdamW)."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adamw_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        if not bias_correction or not set_grad_none:
            raise ValueError("bias_correction and set_grad_none are always on: remove them")
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, decoupled_weight_decay=adamw_mode
        )


class CPUAdam(FusedAdam):
    """torch's Adam, by default with decoupled weight decay (AdamW)."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adamw_mode: bool = True,
        nvme_offload_fraction: float = 0.0,
        nvme_offload_dir: str | None = None,
    ) -> None:
        if nvme_offload_fraction:
            raise ValueError("optimizer state stays in memory: remove nvme_offload_fraction")
        super().__init__(model_params, lr, bias_correction, betas, eps, adamw_mode, weight_decay)


class HybridAdam(CPUAdam):
    """torch's Adam, by default with decoupled weight decay (AdamW)."""


class FusedSGD(torch.optim.SGD):
    """torch's SGD."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
    ) -> None:
        if wd_after_momentum:
            raise ValueError("weight decay is applied before momentum: remove wd_after_momentum")
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov)


class _TrustRatio(Optimizer):
    """An optimizer that scales the rate of each parameter by its norm and that of its update."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, self.state[parameter], group)
        return loss

    def update(self, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Update one parameter."""
        raise NotImplementedError


class Lamb(_TrustRatio):
    """LAMB, Adam with layer-wise rates, without bias correction.

    See "Large Batch Optimization for Deep Learning", https://arxiv.org/abs/1904.00962. With
    ``adam`` all rates are equal.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adam: bool = False,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, options)
        self.adam = adam

    def update(self, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Update one parameter."""
        grad = parameter.grad
        assert grad is not None
        if not state:
            state.update(exp_avg=torch.zeros_like(grad), exp_avg_sq=torch.zeros_like(grad))
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        one, two = group["betas"]
        mean.lerp_(grad, 1 - one)
        square.mul_(two).addcmul_(grad, grad, value=1 - two)
        change = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * parameter
        ratio = 1.0 if self.adam else _ratio(parameter.norm(), change.norm())
        parameter.sub_(change * (group["lr"] * ratio))


class FusedLAMB(Lamb):
    """`Lamb`; use ``clip_grad_norm`` of the config to clip gradients."""


class Lars(_TrustRatio):
    """LARS, SGD with layer-wise rates.

    See "Large Batch Training of Convolutional Networks", https://arxiv.org/abs/1708.03888.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        eeta: float = 1e-3,
        weight_decay: float = 0.0,
        epsilon: float = 0.0,
    ) -> None:
        if not 0 < eeta <= 1:
            raise ValueError(f"eeta must be above 0 and at most 1, got {eeta}")
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, options | {"eeta": eeta, "epsilon": epsilon})

    def update(self, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Update one parameter."""
        grad, decay = parameter.grad, group["weight_decay"]
        assert grad is not None
        norm = parameter.norm()
        ratio = _ratio(group["eeta"] * norm, grad.norm() + decay * norm + group["epsilon"])
        change = (grad + decay * parameter).clamp(-10.0, 10.0)
        if group["momentum"]:
            if "momentum_buffer" in state:
                change = state["momentum_buffer"].mul_(group["momentum"]).add_(change)
            state["momentum_buffer"] = change
        parameter.sub_(change * (group["lr"] * ratio.clamp(0.0, 50.0)))


def _ratio(one: Tensor, other: Tensor) -> Tensor:
    """Return the ratio of two norms; 1 if one of them is 0."""
    return torch.where((one > 0) & (other > 0), one / other, torch.ones_like(one))


def __getattr__(name: str) -> Any:
    """Return a layer of torch."""
    found = None if name.startswith("_") else getattr(_torch_nn, name, None)
    if found is None:
        raise AttributeError(f"neither stoker.dialects.colossalai.nn nor torch.nn has {name!r}")
    return found
