"""The functions that torch calls around modules, gradients and updates."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

_HOOKS: dict[type, tuple[str, ...]] = {
    nn.Module: ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    Tensor: ("_backward_hooks", "_post_accumulate_grad_hooks"),
    torch.optim.Optimizer: ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),
}


def hooks_of(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield what torch calls around a module, a gradient or an optimizer's step, with names."""
    kinds = next((kinds for kind, kinds in _HOOKS.items() if isinstance(owner, kind)), ())
    for kind in kinds:
        for number, hook in enumerate((getattr(owner, kind, None) or {}).values()):
            yield f"{kind.strip('_')}[{number}]", hook


def global_hooks() -> Iterator[tuple[str, Any]]:
    """Yield what torch calls around every module, with names."""
    for kind in ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks"):
        hooks = getattr(nn.modules.module, f"_global_{kind}", {})
        for number, hook in enumerate(hooks.values()):
            yield f"global_{kind}[{number}]", hook
