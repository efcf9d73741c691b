"""`RngSnapshot`: the state of random number generators, also as a tree that needs no pickle."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from stoker.core.user_state import Entries

GlobalState: TypeAlias = dict[str, Any]
"""What `stoker.core.seed.random_state` returns, or a subset of its entries."""


@dataclass(frozen=True, slots=True)
class RngSnapshot:
    """The state of the random number generators at the start of a pass.

    Args:
        global_state: the global generators that the loader may draw from.
        generators: the state of each generator of the loader and its sampler.
        workers_running: whether the loader reuses workers from an earlier pass.
        user_state: other state of the loader and its components, see `UserState`.
    """

    global_state: GlobalState = field(default_factory=dict)
    generators: list[Tensor] = field(default_factory=list)
    workers_running: bool = False
    user_state: Entries = field(default_factory=list)

    def restore(self, generators: Sequence[torch.Generator]) -> None:
        """Restore the global generators, and ``generators`` of the loader."""
        state = self.global_state
        if "torch" in state:
            torch.set_rng_state(state["torch"])
        if "python" in state:
            random.setstate(state["python"])
        if "numpy" in state:
            np.random.set_state(state["numpy"])
        set_generator_states(generators, self.generators)

    def state_dict(self) -> dict[str, Any]:
        """Return the snapshot as a tree of tensors, ints and strings."""
        user_state = {"user_state": self.user_state} if self.user_state else {}
        return {
            "global": _packed(self.global_state),
            "generators": self.generators,
            "workers_running": int(self.workers_running),
            **user_state,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> "RngSnapshot":
        """Build the snapshot whose `state_dict` is ``state``."""
        running = bool(state["workers_running"])
        user_state = state.get("user_state", [])
        return cls(_unpacked(state["global"]), state["generators"], running, user_state)


def torch_state() -> GlobalState:
    """Return the state of torch's global generator only, at a fiftieth of the cost of all."""
    return {"torch": torch.get_rng_state()}


def generator_states(generators: Iterable[torch.Generator]) -> list[Tensor]:
    """Return the state of each generator."""
    return [generator.get_state() for generator in generators]


def set_generator_states(generators: Sequence[torch.Generator], states: Sequence[Tensor]) -> None:
    """Set each generator to its state."""
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


def _packed(state: GlobalState) -> dict[str, Any]:
    """Convert the state of the global CPU generators to tensors, ints and strings."""
    tree = {name: value for name, value in state.items() if name == "torch"}
    if "python" in state:
        version, keys, gauss = state["python"]
        tree["python"] = {
            "version": version,
            "keys": torch.tensor(keys),
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


def _unpacked(tree: Mapping[str, Any]) -> GlobalState:
    """Convert the tree that `_packed` returned back to a state."""
    state = {name: value for name, value in tree.items() if name == "torch"}
    if "python" in tree:
        python = tree["python"]
        gauss = python["gauss"].tolist()
        keys = tuple(python["keys"].tolist())
        state["python"] = (python["version"], keys, gauss[0] if gauss else None)
    if "numpy" in tree:
        numpy = tree["numpy"]
        keys = numpy["keys"].numpy().astype(np.uint32)
        gauss = numpy["gauss"].item()
        state["numpy"] = (numpy["name"], keys, numpy["position"], numpy["has_gauss"], gauss)
    return state
