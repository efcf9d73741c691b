"""Random numbers: seed all generators, capture their state, and restore it."""

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


def seed_shard(seed: int | None, shard: int) -> None:
    """Seed the rank that reads a shard of the data; the first gets the seed of a single process.

    Without a seed the first rank is left unchanged, and the others derive theirs from it.
    """
    if seed is not None or shard:
        seed_all((torch.initial_seed() if seed is None else seed) + shard)
        _SET_BY_RUNS.add(torch.initial_seed())


def mixed_seed(*numbers: int) -> int:
    """Return a seed of 63 bits that depends on all of these numbers and on their order."""
    mixed = 0
    for number in numbers:
        mixed = mix_bits(mixed + number)
    return mixed >> 1


def mix_bits(number: int) -> int:
    """Mix all bits of ``number`` into 64 bits, with the finalizer of splitmix64."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


_MASK = 2**64 - 1
_SET_BY_RUNS: set[int] = set()
_LARGEST_SEED = 2**32


def seed_or_none(seed: Any) -> int | None:
    """Return a seed that somebody chose; None for one that was drawn from the system."""
    return int(seed) if isinstance(seed, int) and 0 <= seed < _LARGEST_SEED else None


def torch_seed() -> int | str | None:
    """Return the seed that the program gave to torch; None if a run replaced it since."""
    seed = torch.initial_seed()
    if seed in _SET_BY_RUNS:
        return None
    chosen = seed_or_none(seed)
    return "not set" if chosen is None else chosen


def random_state() -> dict[str, Any]:
    """Return the state of all global generators."""
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
    """Restore the state that `random_state` returned."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])
    if "mps" in state:
        torch.mps.set_rng_state(state["mps"])


@contextmanager
def preserve_rng(*generators: torch.Generator) -> Iterator[None]:
    """Restore the global generators, and these, after the block."""
    state = random_state()
    own = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        set_random_state(state)
        for generator, before in zip(generators, own, strict=True):
            generator.set_state(before)
