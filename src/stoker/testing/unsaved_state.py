"""Find values that affect a training but are not part of its checkpoints.

A counter in a model, a generator in a dataset, a list in a hook: if such a value affects training
and is not in a ``state_dict``, a resumed run differs from an uninterrupted one. Not every value
found here matters. But when the results of two runs differ, a value that differs too is a likely
cause.
"""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from stoker.resume.run_state import RunState
from stoker.testing.digest import digest

_PLAIN_TYPES = (bool, int, float, str)
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_LIBRARIES = ("stoker", "torch", "numpy", "builtins", "collections", "functools", "pathlib")
"""Packages whose objects are not searched: their state is saved, or does not affect training."""

_MAX_DEPTH = 4
_MAX_ITEMS = 50


def unsaved_values(state: RunState) -> dict[str, str]:
    """Return the digests of plain attributes of user code, by a name to show to the user.

    The search covers hooks, the model, the criterion, the step, and the training loader with its
    dataset, sampler and collate function. A name reads ``"hook Warmup: seen (int)"``.
    """
    found: dict[str, str] = {}
    seen: set[int] = set()
    for name, root in list(_roots(state)):
        for path, value in _plain_attributes(root, _MAX_DEPTH, seen):
            found[f"{name}: {path} ({type(value).__name__})"] = digest(value)
    return found


def _roots(state: RunState) -> Iterator[tuple[str, Any]]:
    """Yield the objects to search, with the names to show for them."""
    for hook in state.hooks:
        if not _is_library_object(hook):
            yield f"hook {hook.name}", hook
    engine = state.run.engine
    for name, module in engine.model.named_modules():
        yield f"model {name}".rstrip(), _ModuleAttributes(module)
    if isinstance(engine.given_criterion, torch.nn.Module):
        yield "criterion", _ModuleAttributes(engine.given_criterion)
    if not _is_library_object(state.step):
        yield "step", state.step
    loader = getattr(state.run.feeder, "loader", None)
    if not _is_library_object(loader):
        yield "train_loader", loader
    for part in ("dataset", "sampler", "collate_fn"):
        if (value := getattr(loader, part, None)) is not None:
            yield f"{part} of train_loader", value


class _ModuleAttributes:
    """The public attributes of one module, without its parameters, buffers and submodules."""

    def __init__(self, module: torch.nn.Module) -> None:
        attributes = {} if _is_library_object(module) else vars(module)
        self.__dict__.update(
            {k: v for k, v in attributes.items() if not k.startswith("_") and k != "training"}
        )


def _plain_attributes(owner: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield plain values and generators of an object and of the objects it holds, by path."""
    if depth == 0 or id(owner) in seen or not hasattr(owner, "__dict__"):
        return
    seen.add(id(owner))
    for name, value in list(vars(owner).items()):
        if isinstance(value, (*_PLAIN_TYPES, *_GENERATORS)) or _is_plain_collection(value):
            yield name, value
        elif not _is_library_object(value):
            for path, inner in _plain_attributes(value, depth - 1, seen):
                yield f"{name}.{path}", inner


def _is_plain_collection(value: Any) -> bool:
    items = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(items, list | tuple | set) and type(items).__name__ != "deque":
        return False
    return len(items) <= _MAX_ITEMS and all(isinstance(item, _PLAIN_TYPES) for item in items)


def _is_library_object(value: Any) -> bool:
    return value is None or type(value).__module__.split(".")[0] in _LIBRARIES
