"""`SavedTraining`: what a checkpoint of another trainer holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from stoker.cli.ckpt.unpickle import refusal, unloaded_in
from stoker.core.errors import ConfigError

_WEIGHTS = ("state_dict", "model_state_dict", "model", "module")
"""Keys of the state dict in files of Lightning, tutorials, many others, and DeepSpeed."""

_OPTIMIZER = ("optimizer_states", "optimizer", "optimizer_state_dict", "optim", "optimizers")
_SCHEDULER = ("lr_schedulers", "lr_scheduler", "scheduler", "scheduler_state_dict")
_STEP = ("global_step", "step", "iteration", "iter")

_PREFIXES = ("model.", "module.", "_orig_mod.")
"""Prefixes that Lightning modules, DataParallel and torch.compile add to every name."""


@dataclass
class SavedTraining:
    """A training as another trainer has saved it.

    Attributes:
        trainer: who saved it: "Lightning", "Hugging Face", "Ignite", "Keras" or "PyTorch".
        weights: the tensors of the model, in their order.
        trained: those that the optimizer updated, if ``weights`` are an average of them.
        optimizers: the ``state_dict`` of each optimizer.
        lr_schedulers: the ``state_dict`` of each scheduler.
        scaler: the ``state_dict`` of the loss scaler.
        step: the number of updates, None if it is unknown.
        epoch: the number of finished epochs, None if it is unknown.
        within_epoch: whether it was saved in the middle of an epoch.
        notes: how the weights were read.
        left_out: what is not imported, a clause each.
    """

    trainer: str
    weights: dict[str, Any]
    trained: dict[str, Any] = field(default_factory=dict)
    optimizers: list[dict[str, Any]] = field(default_factory=list)
    lr_schedulers: list[dict[str, Any]] = field(default_factory=list)
    scaler: dict[str, Any] = field(default_factory=dict)
    step: int | None = None
    epoch: int | None = None
    within_epoch: bool = False
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def use_trained(self) -> None:
        """Take the trained weights instead of an average: the optimizer's state is theirs."""
        if self.trained:
            self.weights = self.trained
            self.notes = ["weights of 'current_model_state': those of 'state_dict' are averages"]
            self.left_out.append("averaged weights (-o FILE.safetensors imports them)")

    def clean(self) -> None:
        """Strip prefixes that all weights share, and drop what are no tensors."""
        stripped = ""
        while prefix := self._shared_prefix():
            self.weights = {name.removeprefix(prefix): one for name, one in self.weights.items()}
            stripped += prefix
        if stripped:
            self.notes.append(f"stripped '{stripped}' from every name")
        others = [name for name, one in self.weights.items() if not isinstance(one, Tensor)]
        if others:
            self.notes.append(f"skipped, because they are not tensors: {', '.join(others)}")
        self.weights = {name: one for name, one in self.weights.items() if name not in others}
        if self.step is None:
            self.step = _count_updates(self.optimizers)

    def _shared_prefix(self) -> str:
        names = list(self.weights) if self.trainer != "Hugging Face" else [""]
        return next((p for p in _PREFIXES if all(name.startswith(p) for name in names)), "")


def read_saved(loaded: Any, path: Path) -> SavedTraining:
    """Find the parts of a training in an object that was loaded from a file."""
    if isinstance(loaded, nn.Module):
        return SavedTraining("PyTorch", dict(loaded.state_dict()))
    if (needs := unloaded_in([loaded])) is not None and not isinstance(loaded, Mapping):
        raise ConfigError(refusal(path, f"a pickle that needs '{needs}'"))
    if not isinstance(loaded, Mapping):
        raise ConfigError(f"'{path}' contains a {type(loaded).__name__}, expected a state dict")
    key = next((key for key in _WEIGHTS if _weights_of(loaded.get(key)) is not None), None)
    if key is None and _is_state_dict(loaded):
        return SavedTraining("PyTorch", dict(loaded))
    if key is None:
        raise ConfigError(_no_weights(loaded, path))
    saved = SavedTraining("PyTorch", dict(_weights_of(loaded[key]) or {}))
    saved.notes.append(f"weights of '{key}' in {path.name}")
    read = {key, *_read_states(saved, loaded)}
    if "pytorch-lightning_version" in loaded:
        read |= _read_lightning(saved, loaded)
    elif isinstance(loaded.get("trainer"), Mapping) and "epoch_length" in loaded["trainer"]:
        read |= _read_ignite(saved, loaded["trainer"])
    else:
        read |= _read_counters(saved, loaded)
    for name in loaded.keys() - read:
        needs = unloaded_in(loaded[name])
        why = f" (it has objects of '{needs}', and no code of the file is run)" if needs else ""
        saved.left_out.append(f"'{name}'{why}")
    saved.left_out.sort()
    return saved


def _no_weights(loaded: Mapping[Any, Any], path: Path) -> str:
    if (needs := unloaded_in(dict(loaded))) is not None:
        return refusal(path, f"a pickle that needs '{needs}'")
    keys = ", ".join(map(str, list(loaded)[:8]))
    return f"'{path}' contains no recognizable state dict: its keys are {keys}"


def _weights_of(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, nn.Module):
        return value.state_dict()
    return value if isinstance(value, Mapping) and _is_state_dict(value) else None


def _is_state_dict(value: Mapping[Any, Any]) -> bool:
    """Return whether all values are tensors, or extra state under its own key."""
    named = bool(value) and all(isinstance(key, str) for key in value)
    return named and all(
        isinstance(one, Tensor) or key.endswith("_extra_state") for key, one in value.items()
    )


def _read_states(saved: SavedTraining, loaded: Mapping[str, Any]) -> set[str]:
    """Take optimizers, schedulers and scaler; return the keys that were read."""
    read: set[str] = set()
    for key in _OPTIMIZER:
        states = _listed(loaded.get(key))
        if states and all(is_optimizer_state(one) for one in states):
            saved.optimizers, read = states, read | {key}
            break
    for key in _SCHEDULER:
        states = _listed(loaded.get(key))
        if states and all(is_scheduler_state(one) for one in states):
            saved.lr_schedulers, read = states, read | {key}
            break
    scaler = loaded.get("scaler")
    if isinstance(scaler, Mapping) and "scale" in scaler:
        saved.scaler, read = dict(scaler), read | {"scaler"}
    return read | {key for key in (*_OPTIMIZER, *_SCHEDULER) if loaded.get(key) in ([], {}, None)}


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value] if value else []


def is_optimizer_state(value: Any) -> bool:
    """Return whether a value is the ``state_dict`` of a torch optimizer."""
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("state"), Mapping)
        and isinstance(value.get("param_groups"), list)
        and all(isinstance(g, Mapping) and "params" in g for g in value["param_groups"])
        and unloaded_in(dict(value)) is None
    )


def is_scheduler_state(value: Any) -> bool:
    """Return whether a value is the ``state_dict`` of a torch scheduler."""
    known = isinstance(value, Mapping) and "last_epoch" in value
    return known and unloaded_in(dict(value)) is None


def _read_lightning(saved: SavedTraining, loaded: Mapping[str, Any]) -> set[str]:
    saved.trainer = "Lightning"
    saved.step, epoch = _int(loaded.get("global_step")), _int(loaded.get("epoch"))
    loop = loaded.get("loops")
    loop = loop.get("fit_loop") if isinstance(loop, Mapping) else None
    batches = loop.get("epoch_loop.batch_progress") if isinstance(loop, Mapping) else None
    if isinstance(batches, Mapping) and epoch is not None:  # it counts the epoch from 0
        ended = bool(batches.get("is_last_batch"))
        saved.epoch, saved.within_epoch = epoch + ended, not ended
    if len(saved.optimizers) > 1:
        saved.step = None  # Lightning adds up the steps of all optimizers
    read = {"epoch", "global_step", "pytorch-lightning_version", "loops"}
    trained = _weights_of(loaded.get("current_model_state"))
    if trained is None:
        return read
    saved.trained = dict(trained)  # a callback for weight averaging exchanges the two
    return read | {"current_model_state", "averaging_state"}


def _read_ignite(saved: SavedTraining, trainer: Mapping[str, Any]) -> set[str]:
    saved.trainer = "Ignite"
    length, iteration = _int(trainer["epoch_length"]), _int(trainer.get("iteration"))
    saved.epoch = _int(trainer.get("epoch"))
    if iteration is not None and length:
        saved.epoch, rest = divmod(iteration, length)
        saved.within_epoch = rest > 0
    counted = _count_updates(saved.optimizers)  # an iteration need not be an update
    saved.step = iteration if counted is None else counted
    return {"trainer"}


def _read_counters(saved: SavedTraining, loaded: Mapping[str, Any]) -> set[str]:
    """Take the counters of a dict that a script has saved."""
    found = {key for key in _STEP if _int(loaded.get(key)) is not None}
    saved.step = next((_int(loaded[key]) for key in _STEP if key in found), None)
    saved.epoch = _int(loaded.get("epoch"))
    if saved.epoch is None:
        return found
    saved.notes.append(
        f"'epoch' is {saved.epoch}, taken as {saved.epoch} finished epochs: pass --epoch if the "
        "script counts otherwise"
    )
    return found | {"epoch"}


def _count_updates(optimizers: list[dict[str, Any]]) -> int | None:
    """Return the updates that an optimizer has counted, None if it does not count."""
    states = [one for state in optimizers[:1] for one in state["state"].values()]
    counts = [one["step"] for one in states if isinstance(one, Mapping) and "step" in one]
    return max((int(one) for one in counts), default=None)


def _int(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
