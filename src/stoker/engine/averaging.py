"""Optimizers that train with other weights than they evaluate, such as schedule-free ones.

They have methods ``train`` and ``eval``, which compute one kind of weights from the other. Both
round, so weights of training are copied here and not computed back.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_WEIGHT = "weight_in_training"
"""The weight of training in the saved state of a parameter. The saved model has the average."""


def switching(optimizers: Iterable[Optimizer]) -> list[Any]:
    """Return the optimizers that have a mode for training and one for evaluation."""
    return [
        one
        for one in optimizers
        if callable(getattr(one, "train", None)) and callable(getattr(one, "eval", None))
    ]


def is_training(optimizer: Any) -> bool:
    """Return whether the parameters are those of training."""
    flags = [group["train_mode"] for group in optimizer.param_groups if "train_mode" in group]
    return any(flags) if flags else bool(getattr(optimizer, "train_mode", True))


def end_training(optimizers: Iterable[Optimizer]) -> None:
    """Let optimizers evaluate the weights that are put into the model next."""
    for one in switching(optimizers):
        one.eval()


@contextmanager
def evaluated_weights(optimizers: Iterable[Optimizer]) -> Iterator[None]:
    """Within this context, parameters have the values that optimizers want evaluated.

    Afterwards, they have their old values, bit for bit.
    """
    training = [one for one in switching(optimizers) if is_training(one)]
    held = [p for one in training for group in one.param_groups for p in group["params"]]
    before = [parameter.detach().clone() for parameter in held]
    for one in training:
        one.eval()
    try:
        yield
    finally:
        for one in training:
            one.train()
        with torch.no_grad():
            for parameter, value in zip(held, before, strict=True):
                parameter.copy_(value)


def weights_to_save(model: nn.Module, optimizers: Iterable[Optimizer]) -> dict[str, Any]:
    """Return the state of a model with the weights that optimizers want evaluated."""
    if not any(is_training(one) for one in switching(optimizers)):
        return model.state_dict()
    with evaluated_weights(optimizers), torch.no_grad():
        state = model.state_dict()
        held = {id(one): one.clone() for one in state.values() if isinstance(one, Tensor)}
        return {name: held.get(id(one), one) for name, one in state.items()}


def add_weights(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of an optimizer with the weights of training, if the model has others."""
    if not switching([optimizer]) or not is_training(optimizer):
        return state
    held = [p.detach() for group in optimizer.param_groups for p in group["params"]]
    return {
        **state,
        "state": {n: {**one, _WEIGHT: held[n]} for n, one in state["state"].items()},
    }


def load_weights(optimizer: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    """Load the weights of training; return the rest of the state, for the optimizer."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    rest: dict[int, dict[str, Any]] = {}
    with torch.no_grad():
        for number, one in state["state"].items():
            rest[number] = {key: value for key, value in one.items() if key != _WEIGHT}
            if _WEIGHT in one:
                held[number].copy_(one[_WEIGHT])
    return {**state, "state": rest}


def prepare_to_load(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Put an optimizer into the mode that a state was saved in, before weights are loaded."""
    if switching([optimizer]):
        trained = any(_WEIGHT in one for one in state["state"].values())
        switch = optimizer.train if trained or not state["state"] else optimizer.eval
        switch()
