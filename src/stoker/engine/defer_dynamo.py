"""Optimizers that are made without torch's compiler, where nothing is compiled."""

import sys
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

_MARK = "__dynamo_disable"


def postpone_compiler() -> None:
    """Let the methods of optimizers that the compiler is to leave alone not import it for that.

    Torch imports its compiler, which takes longer than many a first epoch, at the first call of
    such a method, that is when an optimizer is made. Nothing can be compiled before someone else
    has imported it; from then on they are marked as torch does it.
    """
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        marking = getattr(Optimizer, name)
        method = getattr(marking, "__wrapped__", None)
        if method is not None and not hasattr(method, _MARK):
            setattr(method, _MARK, _until_imported(method, marking))


def _until_imported(method: Any, marking: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return method(*args, **kwargs)
        vars(method).pop(_MARK, None)
        return marking(*args, **kwargs)

    return call
