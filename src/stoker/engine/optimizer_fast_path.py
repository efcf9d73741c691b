"""Step and zero gradients without the bookkeeping that torch adds for profilers and its compiler.

On a small model the profiler record of ``optimizer.step()`` costs more than the update. The fast
path calls the function inside torch's wrapper, and only if that wrapper is torch's own: anything
that somebody has patched, hooked or overridden runs as written.
"""

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.optim import Optimizer, lr_scheduler
from torch.optim import optimizer as torch_optimizer


def _wrapper_code(decorate: Callable[..., Any] | None) -> CodeType | None:
    """Return the code of the wrapper that one of torch's decorators makes.

    All wrappers of a decorator share one code object, which `functools.wraps` does not copy. None
    if torch has no such decorator, or if somebody has replaced it.
    """
    wrapper = None if decorate is None else decorate(lambda *_: None)
    is_torchs = type(wrapper) is FunctionType and wrapper.__globals__ is vars(torch_optimizer)
    return wrapper.__code__ if is_torchs else None  # type: ignore[union-attr]


def _torch_zero_grad() -> Any:
    """Return ``Optimizer.zero_grad``, or None if somebody has replaced it."""
    method: Any = Optimizer.zero_grad
    layers = (method, getattr(method, "__wrapped__", method))
    homes = {getattr(layer, "__globals__", {}).get("__name__") for layer in layers}
    return method if homes <= {"torch._compile", "torch.optim.optimizer"} else None


_PROFILED = _wrapper_code(Optimizer.profile_hook_step)
_NO_GRAD = _wrapper_code(getattr(torch_optimizer, "_use_grad_for_differentiable", None))
_ZERO_GRAD = _torch_zero_grad()


def step(optimizer: Optimizer) -> None:
    """Call ``optimizer.step()``, directly where nothing can observe the difference.

    That is where the step is torch's own wrapper around the optimizer's code, nothing but a
    learning-rate scheduler of torch has replaced it on the instance, no step hook is registered,
    no profiler runs and nothing is being compiled.
    """
    wrapper: Any = type(optimizer).step
    if type(wrapper) is not FunctionType or wrapper.__code__ is not _PROFILED:
        optimizer.step()
        return
    own: Any = optimizer.__dict__.get("step")
    if (
        (own is not None and not _is_from_scheduler(own, wrapper))
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or torch_optimizer._global_optimizer_pre_hooks
        or torch_optimizer._global_optimizer_post_hooks
        or torch._C._autograd._profiler_enabled()
        or torch.compiler.is_compiling()
    ):
        optimizer.step()
        return
    if own is not None:
        optimizer._opt_called = True  # type: ignore[attr-defined]  # or the scheduler warns
    inner = wrapper.__wrapped__  # type: ignore[attr-defined]
    if type(inner) is not FunctionType or inner.__code__ is not _NO_GRAD:
        inner(optimizer)
        return
    with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
        inner.__wrapped__(optimizer)  # type: ignore[attr-defined]


def _is_from_scheduler(own: Any, wrapper: Any) -> bool:
    """Return whether a step on the instance is the call counter of torch's schedulers."""
    return (
        type(own) is FunctionType
        and own.__globals__ is vars(lr_scheduler)
        and own.__wrapped__ is wrapper  # type: ignore[attr-defined]
    )


def zero_grad(optimizer: Optimizer) -> None:
    """Call ``optimizer.zero_grad()``, directly where it is torch's own."""
    if type(optimizer).zero_grad is not _ZERO_GRAD or "zero_grad" in optimizer.__dict__:
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
