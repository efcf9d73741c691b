"""Losses, metrics, optimizers and layers: those of torch, with the names of Colossal-AI.

Layers are split over processes by the layout and not by themselves, so `Linear` is torch's.
"""

from typing import Any

import torch
from torch import Tensor
from torch import nn as _torch_nn

from stoker.core.errors import did_you_mean
from stoker.dialects.colossalai.utils import checkpoint as _checkpoint
from stoker.nn import Lamb, Lars

__all__ = ["Lamb", "Lars"]


_ALWAYS = {
    "bias_correction": True,
    "set_grad_none": True,
    "amsgrad": False,
    "nvme_offload_fraction": 0.0,
    "nvme_offload_dir": None,
    "wd_after_momentum": False,
}
"""Options of optimizers that have only one value here."""


def _check_fixed(**options: Any) -> None:
    for name, value in options.items():
        if name not in _ALWAYS:
            raise TypeError(f"the optimizer has no option {name!r}{did_you_mean(name, _ALWAYS)}")
        if value != _ALWAYS[name]:
            raise ValueError(f"{name} is always {_ALWAYS[name]!r}: remove {name}={value!r}")


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
            return _checkpoint(self._forward, False, *args, **kwargs)
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
        **fixed: Any,
    ) -> None:
        _check_fixed(bias_correction=bias_correction, **fixed)
        super().__init__(params, lr, betas, eps, weight_decay, decoupled_weight_decay=adamw_mode)


class CPUAdam(FusedAdam):
    """torch's Adam, by default with decoupled weight decay (AdamW)."""

    def __init__(self, model_params: Any, *args: Any, **options: Any) -> None:
        names = ("lr", "bias_correction", "betas", "eps", "weight_decay", "adamw_mode")
        super().__init__(model_params, **dict(zip(names, args, strict=False)), **options)


HybridAdam = CPUAdam


class FusedSGD(torch.optim.SGD):
    """torch's SGD."""

    def __init__(self, params: Any, lr: float = 1e-3, *args: Any, **options: Any) -> None:
        _check_fixed(wd_after_momentum=options.pop("wd_after_momentum", False))
        super().__init__(params, lr, *args, **options)


FusedLAMB = Lamb


def __getattr__(name: str) -> Any:
    """Return a layer of torch."""
    found = None if name.startswith("_") else getattr(_torch_nn, name, None)
    if found is None:
        raise AttributeError(f"neither stoker.dialects.colossalai.nn nor torch.nn has {name!r}")
    return found
