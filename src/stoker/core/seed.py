"""Random numbers: one seed for all generators, and leaving them as they were found."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed Python, NumPy and torch, on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_part(seed: int | None, part: int) -> None:
    """Seed the process that reads this part of the data: the first as it would be alone.

    Without a seed the first one is left as it is, and the others go out from its last seed.
    """
    if seed is not None or part:
        seed_all((torch.initial_seed() if seed is None else seed) + part)


def random_state() -> dict[str, Any]:
    """The state of all global generators."""
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():  # untested: no such device here
        state["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():  # untested: no such device here
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Give all global generators the state that `random_state` returned."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])
    if "mps" in state:
        torch.mps.set_rng_state(state["mps"])


@contextmanager
def undisturbed(*generators: torch.Generator) -> Iterator[None]:
    """Whatever is drawn within, global and these generators are afterwards as they were before."""
    state = random_state()
    own = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        set_random_state(state)
        for generator, before in zip(generators, own, strict=True):
            generator.set_state(before)
