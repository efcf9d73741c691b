"""What a training keeps in plain attributes, where no checkpoint looks.

A counter in a model, a generator in a dataset, a list in a hook: if such a value decides anything
and is not part of a ``state_dict``, a training that goes on is another one. By itself a difference
here means nothing; when results differ, it shows where to look.
"""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from stoker.resume.capture import RunState
from stoker.testing.digest import digest

_PLAIN = (bool, int, float, str)
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_OURS = ("stoker", "torch", "numpy", "builtins", "collections", "functools", "pathlib")
_DEEPEST = 4
_MOST = 50


def unsaved(state: RunState) -> dict[str, str]:
    """Marks of plain attributes of hooks, model, criterion, step and training data, by name."""
    found: dict[str, str] = {}
    seen: set[int] = set()
    for name, thing in list(_roots(state)):
        for path, value in _attributes(thing, _DEEPEST, seen):
            found[f"{name}: {path} ({type(value).__name__})"] = digest(value)
    return found


def _roots(state: RunState) -> Iterator[tuple[str, Any]]:
    for hook in state.hooks:
        if not _is_ours(hook):
            yield f"hook {hook.name}", hook
    engine = state.run.engine
    for name, module in engine.model.named_modules():
        yield f"model {name}".rstrip(), _Own(module)
    if isinstance(engine.given_criterion, torch.nn.Module):
        yield "criterion", _Own(engine.given_criterion)
    if not _is_ours(state.step):
        yield "step", state.step
    loader = getattr(state.run.feeder, "loader", None)
    if not _is_ours(loader):
        yield "train_loader", loader
    for part in ("dataset", "sampler", "collate_fn"):
        if (thing := getattr(loader, part, None)) is not None:
            yield f"{part} of train_loader", thing


class _Own:
    """The attributes of one module that are its own: no tensors, and no modules below it."""

    def __init__(self, module: torch.nn.Module) -> None:
        given = {} if _is_ours(module) else vars(module)
        self.__dict__.update(
            {k: v for k, v in given.items() if not k.startswith("_") and k != "training"}
        )


def _attributes(thing: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Plain values and generators in an object, and in objects within it."""
    if depth == 0 or id(thing) in seen or not hasattr(thing, "__dict__"):
        return
    seen.add(id(thing))
    for name, value in list(vars(thing).items()):
        if isinstance(value, (*_PLAIN, *_GENERATORS)) or _is_plain_list(value):
            yield name, value
        elif not _is_ours(value):
            for path, inner in _attributes(value, depth - 1, seen):
                yield f"{name}.{path}", inner


def _is_plain_list(value: Any) -> bool:
    items = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(items, list | tuple | set) and type(items).__name__ != "deque":
        return False
    return len(items) <= _MOST and all(isinstance(item, _PLAIN) for item in items)


def _is_ours(thing: Any) -> bool:
    return thing is None or type(thing).__module__.split(".")[0] in _OURS
