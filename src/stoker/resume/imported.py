"""Checkpoints that ``stoker ckpt import`` has made of those of other trainers.

Such a checkpoint has weights, optimizer and scheduler states and counters, by the names and in the
order of the other trainer. They are fitted to the engine when a run starts from it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.checkpoint import Loaded
from stoker.core.errors import CheckpointMismatchError
from stoker.core.log import get_logger
from stoker.engine import Engine, unwrap
from stoker.parallel import Layout, local_weights, shard_like

_log = get_logger()

_TRAINER = "imported_from"
_OF_VERSION = {"foreach", "fused", "capturable", "differentiable", "maximize", "initial_lr"} | {
    *("decoupled_weight_decay", "param_names", "name", "params"),
}
"""Options that a group may or may not have, depending on the version of torch and the scheduler."""


def imported_state(
    trainer: str,
    weights: Mapping[str, Tensor],
    optimizers: Sequence[Mapping[str, Any]],
    lr_schedulers: Sequence[Mapping[str, Any]],
    scaler: Mapping[str, Any],
    *,
    step: int,
    epoch: int,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state and the info of a checkpoint, from the parts of another trainer's."""
    shared = {
        "model": dict(weights),
        "engine": {
            "criterion": {},
            "optimizers": _by_number(optimizers),
            "lr_schedulers": _by_number(lr_schedulers),
            "scaler": dict(scaler),
        },
        "hooks": {},
        "run": {
            "step": step,
            "epoch": epoch,
            "samples": 0,
            "metrics": {},
            "stage": "between",
            "validated_at": -1,
            "ended": None,
            "owes_validation": False,
            "ends_epoch": False,
            "limits": [None, None],
        },
    }
    settings = {"total_steps": None, "layout": str(Layout())}
    info = {_TRAINER: trainer, "epoch": epoch, "samples": 0, "metrics": {}, "settings": settings}
    return shared, info


def _by_number(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return states by key; a single one has the key of an engine's only optimizer."""
    return {str(number) if len(states) > 1 else "": dict(one) for number, one in enumerate(states)}


def is_imported(info: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint was imported from another trainer."""
    return _TRAINER in info


def fit_imported(saved: Loaded, engine: Engine) -> Loaded:
    """Return an imported checkpoint with the names and the order of this engine's parts.

    Raises:
        CheckpointMismatchError: weights or optimizer state do not fit.
    """
    trainer, own, parts = saved.info[_TRAINER], engine.state_dict(), saved.shared["engine"]
    in_order = trainer == "Keras"
    shared = {
        **saved.shared,
        "model": _fit_weights(unwrap(engine.model), own["model"], saved.shared["model"], in_order),
        "step": {},
        "events": {"step": saved.step, "serial": 0, "series": {}},
        "history": [],
    }
    schedulers = _fit_schedulers(engine, own["lr_schedulers"], parts["lr_schedulers"])
    optimizers = _fit_optimizers(engine, parts["optimizers"], keep_rate=not schedulers)
    shared["engine"] = {
        "criterion": own["criterion"],
        "optimizers": optimizers or own["optimizers"],
        "lr_schedulers": schedulers or own["lr_schedulers"],
        "scaler": parts["scaler"] or own["scaler"],
    }
    return replace(saved, shared=shared)


# Weights


def _fit_weights(
    model: nn.Module, own: Mapping[str, Any], saved: Mapping[str, Any], in_order: bool
) -> dict[str, Any]:
    """Return the saved weights by the names of the model, those it has."""
    if in_order:
        return _in_order(own, saved)
    found = next((one for one in _renamed(own, saved) if own.keys() <= _names(model, one)), None)
    if found is None:
        return dict(saved)  # comparing it with the model says what is missing
    left_out = sorted(found.keys() - own.keys())
    if left_out:
        _log.warning(f"the model has no {', '.join(left_out[:8])}: they are left out")
    return {name: one for name, one in found.items() if name in own}


def _names(model: nn.Module, weights: Mapping[str, Any]) -> set[str]:
    """Return the names that weights have, with those of tied parameters."""
    return set(local_weights(model, weights))


def _renamed(own: Mapping[str, Any], saved: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield the weights as they are named, then without and with the prefixes that could fit."""
    yield dict(saved)
    first = next(iter(own), "")
    for name in saved:
        if name.endswith(f".{first}"):
            prefix = name.removesuffix(first)
            inside = {n: one for n, one in saved.items() if n.startswith(prefix)}
            others = {n: one for n, one in saved.items() if n not in inside}
            yield others | {n.removeprefix(prefix): one for n, one in inside.items()}
    first = next(iter(saved), "")
    for name in own:
        if name.endswith(f".{first}"):
            yield {name.removesuffix(first) + n: one for n, one in saved.items()}


def _in_order(own: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved weights by the names of the model, one after another.

    Keras has other names, in the same order, and does not count the batches of a BatchNorm.
    """
    names = [name for name in own if not name.endswith("num_batches_tracked")]
    if len(names) != len(saved):
        raise CheckpointMismatchError(
            f"the model has {len(names)} weights and the Keras model {len(saved)}: build the same "
            "layers in the same order"
        )
    fitted = dict(own)
    for name, (layer, one) in zip(names, saved.items(), strict=True):
        if tuple(own[name].shape) != tuple(one.shape):
            raise CheckpointMismatchError(
                f"'{name}' has shape {list(own[name].shape)}, and '{layer}' of Keras in the same "
                f"place {list(one.shape)}: build the same layers in the same order"
            )
        fitted[name] = shard_like(one, own[name])
    return fitted


# Optimizers and schedulers


def _fit_optimizers(engine: Engine, saved: Mapping[str, Any], *, keep_rate: bool) -> dict[str, Any]:
    """Return the saved states for the engine's optimizers, with the options these were made with.

    Args:
        engine: the engine.
        saved: the states in the order of the other trainer; none start from scratch.
        keep_rate: whether the learning rate is one of these options; otherwise the scheduler that
            was restored sets it.
    """
    if not saved:
        _log.warning("the imported checkpoint has no optimizer state: it starts from scratch")
        return {}
    if len(saved) != len(engine.optimizers):
        raise CheckpointMismatchError(
            f"the imported checkpoint has {len(saved)} optimizers, the engine has "
            f"{len(engine.optimizers)}: {_HOW}"
        )
    indexed, own = engine.indexed_parameters(), engine.state_dict()["optimizers"]
    return {
        name: _fit_optimizer(
            engine.optimizers[name], own[name]["param_groups"], state, indexed[name], keep_rate
        )
        for name, state in zip(engine.optimizers, saved.values(), strict=True)
    }


_HOW = (
    "make the optimizer as it was, or import the weights alone with 'stoker ckpt import FILE -o "
    "model.safetensors'"
)


def _fit_optimizer(
    optimizer: Optimizer,
    groups: Sequence[Mapping[str, Any]],
    saved: Mapping[str, Any],
    parameters: Mapping[int, nn.Parameter],
    keep_rate: bool,
) -> dict[str, Any]:
    kind, theirs = type(optimizer).__name__, saved["param_groups"]
    sizes = [[len(group["params"]) for group in some] for some in (theirs, groups)]
    if sum(sizes[0]) != sum(sizes[1]):
        raise CheckpointMismatchError(
            f"the imported optimizer has groups of {sizes[0]} parameters, {kind} has {sizes[1]}: "
            f"{_HOW}"
        )
    for group, their in zip(groups, theirs, strict=False):
        other = (group.keys() ^ their.keys()) - _OF_VERSION
        if other:
            raise CheckpointMismatchError(
                f"the imported state is of another optimizer than {kind} (they differ in "
                f"{', '.join(sorted(other))}): {_HOW}"
            )
    order = [number for group in theirs for number in group["params"]]
    indices = [number for group in groups for number in group["params"]]
    state = {
        index: _fit_state(saved["state"][number], parameters.get(index), index, kind)
        for index, number in zip(indices, order, strict=True)
        if number in saved["state"]
    }
    fitted = [dict(group) for group in groups]
    if not keep_rate and sizes[0] == sizes[1]:
        for group, their in zip(fitted, theirs, strict=True):
            group |= {key: their[key] for key in ("lr", "initial_lr") if key in their}
    _log_options(kind, fitted, theirs)
    return {"state": state, "param_groups": fitted}


def _fit_state(
    saved: Mapping[str, Any], parameter: nn.Parameter | None, index: int, kind: str
) -> dict[str, Any]:
    """Return the state of one parameter, sharded like it; shapes other than its own are errors."""
    if parameter is None:  # another process has it
        return dict(saved)
    fitted = {}
    for key, value in saved.items():
        if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
            raise CheckpointMismatchError(
                f"'{key}' of parameter {index} of {kind} has shape {list(value.shape)} in the "
                f"imported checkpoint, and the parameter {list(parameter.shape)}: {_HOW}"
            )
        is_moment = isinstance(value, Tensor) and value.dim() and not hasattr(value, "placements")
        fitted[key] = shard_like(value, parameter) if is_moment else value
    return fitted


def _log_options(
    kind: str, own: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]
) -> None:
    """Log options that differ from those of the other trainer."""
    differ = [
        f"{key} was {_plain(their[key])} and is {_plain(group[key])}"
        for group, their in zip(own, theirs, strict=False)
        for key in sorted(group.keys() & their.keys() - _OF_VERSION)
        if not _same(group[key], their[key])
    ]
    if differ:
        _log.warning(f"{kind} keeps the options of this run: {'; '.join(dict.fromkeys(differ))}")


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def _same(one: Any, other: Any) -> bool:
    one, other = _plain(one), _plain(other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, int | float):
        return bool(torch.isclose(torch.tensor(one), torch.tensor(float(other)), rtol=1e-6, atol=0))
    return bool(one == other)


def _fit_schedulers(
    engine: Engine, own: Mapping[str, Any], saved: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the saved states for the engine's schedulers; none if they start from scratch."""
    if not own and not saved:
        return {}
    kinds = ", ".join(type(one).__name__ for one in engine.lr_schedulers.values()) or "none"
    pairs = list(zip(own.values(), saved.values(), strict=False))
    fits = len(own) == len(saved) and all(then.keys() <= now.keys() for now, then in pairs)
    if not fits:
        _log.warning(
            f"the imported checkpoint has {len(saved) or 'no'} LR scheduler"
            f"{'' if len(saved) == 1 else 's'}, and the engine has {kinds}: "
            + ("it starts from scratch" if own else "the learning rate is that of this run")
        )
        return {}
    return {name: {**now, **then} for name, (now, then) in zip(own, pairs, strict=True)}
