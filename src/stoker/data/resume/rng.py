"""The state of random number generators at one moment, and as a tree that needs no pickle."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

State: TypeAlias = dict[str, Any]
"""As `stoker.core.seed.random_state` returns it, or the part of it that matters."""


@dataclass(frozen=True, slots=True)
class RngSnapshot:
    """How the generators were when a pass began.

    Args:
        shared: the global ones, as far as the loader may draw from them.
        own: those of loader and sampler.
        warm: whether the loader's workers ran already.
    """

    shared: State
    own: list[Tensor]
    warm: bool = False


def torch_state() -> State:
    """The state of torch's global generator alone, at a fiftieth of the price of all."""
    return {"torch": torch.get_rng_state()}


def set_state(state: State) -> None:
    """Give the global generators of the CPU that are in ``state`` the state they have there."""
    if "torch" in state:
        torch.set_rng_state(state["torch"])
    if "python" in state:
        random.setstate(state["python"])
    if "numpy" in state:
        np.random.set_state(state["numpy"])


def states_of(generators: Iterable[torch.Generator]) -> list[Tensor]:
    """The state of each generator."""
    return [generator.get_state() for generator in generators]


def set_states(generators: Sequence[torch.Generator], states: Sequence[Tensor]) -> None:
    """Give each generator its state."""
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


def packed(state: State) -> dict[str, Any]:
    """The state of the CPU's global generators as tensors, ints and strings."""
    tree: dict[str, Any] = {}
    if "torch" in state:
        tree["torch"] = state["torch"]
    if "python" in state:
        version, words, gauss = state["python"]
        tree["python"] = {
            "version": version,
            "words": torch.tensor(words),
            "gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        }
    if "numpy" in state:
        name, keys, position, has_gauss, gauss = state["numpy"]
        tree["numpy"] = {
            "name": name,
            "keys": torch.from_numpy(keys.astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "gauss": torch.tensor([gauss], dtype=torch.float64),
        }
    return tree


def unpacked(tree: dict[str, Any]) -> State:
    """The state that `packed` made a tree of."""
    state: State = {}
    if "torch" in tree:
        state["torch"] = tree["torch"]
    if "python" in tree:
        python = tree["python"]
        gauss = python["gauss"].tolist()
        words = tuple(python["words"].tolist())
        state["python"] = (python["version"], words, gauss[0] if gauss else None)
    if "numpy" in tree:
        numpy = tree["numpy"]
        keys = numpy["keys"].numpy().astype(np.uint32)
        gauss = numpy["gauss"].item()
        state["numpy"] = (numpy["name"], keys, numpy["position"], numpy["has_gauss"], gauss)
    return state
