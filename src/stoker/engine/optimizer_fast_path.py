"""An optimizer's step without what torch puts around it for profilers and for its compiler."""

from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as torchs

_wrap: Any = getattr(torchs, "_use_grad_for_differentiable", lambda step: step)
_AROUND = _wrap(lambda *_: None).__code__
"""What torch's own optimizers have around their step: no gradients within, and a word to the
compiler, which is imported for it."""


def step(optimizer: Optimizer) -> None:
    """``optimizer.step()``, whose note for profilers costs more than a small step itself.

    It is left out where nobody could see it: no profiler runs, nothing is being compiled, no hook
    waits for the step, and nobody but a learning-rate scheduler has put something in its place.
    """
    whole: Any = type(optimizer).step
    own: Any = vars(optimizer).get("step")
    by_scheduler = hasattr(own, "_wrapped_by_lr_sched") and own.__wrapped__ is whole
    if (
        not getattr(whole, "hooked", False)
        or (own is not None and not by_scheduler)
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or torchs._global_optimizer_pre_hooks
        or torchs._global_optimizer_post_hooks
        or torch._C._autograd._profiler_enabled()
        or torch.compiler.is_compiling()
    ):
        optimizer.step()
        return
    if by_scheduler:
        optimizer._opt_called = True  # type: ignore[attr-defined]  # else the scheduler warns
    inner = whole.__wrapped__
    if getattr(inner, "__code__", None) is not _AROUND:
        inner(optimizer)
        return
    with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
        inner.__wrapped__(optimizer)
