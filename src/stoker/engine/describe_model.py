"""Describe what an engine trains, and how, before the first step."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.core.attributes import attributes
from stoker.core.bytecode import is_library
from stoker.core.describe import Description
from stoker.core.digest import digest
from stoker.core.object_search import OF_OPTIMIZER
from stoker.core.tree import describe, tensors

_OF_GROUP = frozenset(("params", "initial_lr", "foreach"))
_OF_SCHEDULER = frozenset(
    [
        "optimizer",
        "last_epoch",
        "_step_count",
        "_last_lr",
        "base_lrs",
        "verbose",
        "_get_lr_called_within_step",
        "_is_initial",
        "_schedule_phases",
        "step",
        "best",
        "num_bad_epochs",
        "cooldown_counter",
    ]
)


def describe_model(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    """Return the description of a model and its optimizers before a layout splits them."""
    found = Description()
    named = optimizer if isinstance(optimizer, Mapping) else {"": optimizer}
    add_model(found, model, named if optimizer is not None else {})
    return found.values


def add_model(found: Description, model: nn.Module, optimizers: Mapping[str, Optimizer]) -> None:
    """Describe a model and the optimizers that train it."""
    found.add_module("model", model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for name, optimizer in optimizers.items():
        _add_optimizer(found, _named("optimizer", name), optimizer, names)


def _add_optimizer(
    found: Description, key: str, optimizer: Optimizer, names: Mapping[int, str]
) -> None:
    found.add_type(key, optimizer)
    is_own = not is_library(type(optimizer).__module__)
    weights = {one.shape for group in optimizer.param_groups for one in group["params"]}
    for name, value in attributes(optimizer).items():
        if name not in OF_OPTIMIZER and (is_own or not name.startswith("_")):
            is_copy = any(one.shape in weights for one in tensors(value))  # of weights, left out
            shapes = [describe(one) for one in tensors(value)]
            found.add(f"{key}.{name.strip('_')}", shapes if is_copy else value)
    found.add_hooks(key, optimizer)
    several = len(optimizer.param_groups) > 1
    for number, group in enumerate(optimizer.param_groups):
        path = f"{key}.group {number}" if several else key
        options = {name: value for name, value in group.items() if name not in _OF_GROUP}
        options["lr"] = group.get("initial_lr", group.get("lr"))
        for name, value in options.items():
            found.add(f"{path}.{name}", value.item() if _is_number(value) else value)
        held = [names.get(id(p), f"{list(p.shape)}") for p in group["params"]]
        found.put(f"{path}.params", f"{len(held)} parameters #{digest(held)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1


def add_scheduler(found: Description, name: str, scheduler: Any) -> None:
    """Describe a learning-rate scheduler."""
    _add_scheduler(found, _named("lr_scheduler", name), scheduler)


def _add_scheduler(found: Description, key: str, scheduler: Any) -> None:
    found.add_type(key, scheduler)
    held = attributes(scheduler)
    total = held.get("total_steps")
    for number, phase in enumerate(held.get("_schedule_phases", ())):  # OneCycleLR
        end = (phase["end_step"] + 1) / total if total else phase["end_step"]
        found.put(f"{key}.phase {number}.end", round(float(end), 9))
    for inner, value in enumerate(held.get("_schedulers", ())):
        _add_scheduler(found, f"{key}.{inner}", value)
    for attribute, value in held.items():
        if attribute not in _OF_SCHEDULER and attribute != "_schedulers":
            found.add(f"{key}.{attribute.strip('_')}", value)


def add_criterion(found: Description, criterion: Any) -> None:
    """Describe a criterion: its settings, its weights of classes, or its code."""
    if isinstance(criterion, nn.Module):
        found.add_module("criterion", criterion, content=True)
    elif criterion is not None:
        found.add("criterion", criterion)


def _named(part: str, name: str) -> str:
    return f"{part}.{name}" if name else part
