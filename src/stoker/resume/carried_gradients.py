"""Gradients that a user's step leaves for the next one, such as an accumulation by hand."""

import dis
from types import FunctionType
from typing import Any

from torch import Tensor

from stoker.core.object_search import is_of_stoker
from stoker.engine import Engine, unwrap
from stoker.step import Step

_FIRST = ("zero_grad", "train", "backward")


def carried_gradients(step: Step, engine: Engine) -> dict[str, Tensor]:
    """Return the gradients by parameter, if the next step may add to them."""
    if not _may_carry(type(step)) or engine.layout.processes > engine.layout.replicate:
        return {}
    return {
        name: parameter.grad.detach().clone()
        for name, parameter in unwrap(engine.model).named_parameters()
        if parameter.grad is not None and bool(parameter.grad.any())
    }


def restore_gradients(saved: Any, engine: Engine) -> None:
    """Give parameters the gradients that `carried_gradients` returned.

    Raises:
        ValueError: they are of another model.
    """
    known = dict(unwrap(engine.model).named_parameters())
    if not isinstance(saved, dict):
        raise ValueError("the gradients are of another kind")
    for name, gradient in saved.items():
        fits = isinstance(gradient, Tensor) and name in known
        if not fits or gradient.shape != known[name].shape:
            raise ValueError(f"the gradient of {name!r} is of another model")
    for name, gradient in saved.items():
        known[name].grad = gradient.to(known[name])


def _may_carry(kind: type[Step]) -> bool:
    """Return whether a ``train`` of a user does not begin by clearing the gradients."""
    owner = next(cls for cls in kind.__mro__ if "train" in vars(cls))
    function = vars(owner)["train"]
    if is_of_stoker(owner) or not isinstance(function, FunctionType):
        return False
    names = (one.argval for one in dis.get_instructions(function.__code__))
    return next((name for name in names if name in _FIRST), "backward") == "backward"
