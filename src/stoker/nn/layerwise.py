"""Optimizers with layer-wise learning rates, for large batches."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


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
                    self._update(parameter, self.state[parameter], group)
        return loss

    def _update(self, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Update one parameter."""
        raise NotImplementedError


class Lamb(_TrustRatio):
    """LAMB: Adam with layer-wise rates, without bias correction (arxiv.org/abs/1904.00962).

    Args:
        params: parameters, or groups of them.
        lr: the learning rate, multiplied by the norm of a parameter over that of its update.
        betas: the decay of the running means of gradients and of their squares.
        eps: added to the denominator.
        weight_decay: added to the update, times the parameter.
        adam: use the same rate for all parameters.
    """

    step = _TrustRatio.step  # which torch wraps in the class of an instance

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

    def _update(self, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
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


class Lars(_TrustRatio):
    """LARS: SGD with layer-wise rates (arxiv.org/abs/1708.03888).

    Args:
        params: parameters, or groups of them.
        lr: the learning rate, multiplied by ``eeta`` and the norm of a parameter over that of its
            gradient, by 50 at most.
        momentum: the decay of the running sum of updates.
        eeta: the trust coefficient.
        weight_decay: added to the gradient, times the parameter.
        epsilon: added to the denominator.
    """

    step = _TrustRatio.step

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

    def _update(self, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
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
