"""Read models that Keras has saved: ``.keras``, and ``.weights.h5`` of layers of one kind."""

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from stoker.cli.ckpt.saved_training import SavedTraining
from stoker.core.errors import ConfigError

Convert: TypeAlias = Callable[[Tensor], Tensor]


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _kernel(tensor: Tensor) -> Tensor:
    """Return a kernel as torch has it: output channels, input channels, then space."""
    return tensor.permute(-1, -2, *range(tensor.dim() - 2)).contiguous()


_LINEAR: dict[str, Convert] = {"weight": _kernel, "bias": _same}
_NORM: dict[str, Convert] = {"weight": _same, "bias": _same}
_KINDS: dict[str, dict[str, Convert]] = {
    "dense": _LINEAR,
    **{f"conv{n}d": _LINEAR for n in (1, 2, 3)},
    "embedding": {"weight": _same},
    "layer_normalization": _NORM,
    "batch_normalization": {**_NORM, "running_mean": _same, "running_var": _same},
}
"""Kind of layer → the names of its variables in torch, in the order of Keras, and their layout."""

_STATISTICS = ("running_mean", "running_var")


def read_keras(path: Path) -> SavedTraining:
    """Read the weights of a Keras model, and the state of Adam, AdamW or SGD.

    Raises:
        ConfigError: it cannot be read, or has layers that torch has no counterpart of.
    """
    config: dict[str, Any] = {}
    try:
        data = path.read_bytes()
        if path.suffix == ".keras":
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                config = json.loads(archive.read("config.json"))
                data = archive.read("model.weights.h5")
        with _open_h5(path, data) as file:
            return _read(path, file, config)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"'{path}' is not a model that Keras 3 saved: {reason[:200]}") from error


def _open_h5(path: Path, data: bytes) -> Any:
    try:
        import h5py
    except ImportError:
        raise ConfigError(f"'{path}' needs h5py to be read: pip install h5py") from None
    return h5py.File(io.BytesIO(data), "r")


def _read(path: Path, file: Any, config: Mapping[str, Any]) -> SavedTraining:
    saved = SavedTraining("Keras", {})
    converted: list[tuple[str, Convert]] = []  # the trained variables, in order
    for layer, kind, options in _layers(path, file, config):
        variables = file["layers"][layer]["vars"]
        names = _variables(kind, options, len(variables))
        if names is None:
            raise ConfigError(
                f"layer '{layer}' of '{path}' has {len(variables)} variables, which have no "
                f"counterpart in torch (known: {', '.join(_KINDS)})"
            )
        for number, (name, convert) in enumerate(names.items()):
            saved.weights[f"{layer}.{name}"] = convert(_tensor(variables, number))
            if name not in _STATISTICS:
                converted.append((f"{layer}.{name}", convert))
    compiled = config.get("compile_config") or {}
    _read_optimizer(saved, file, compiled.get("optimizer") or {}, converted)
    return saved


def _variables(kind: str, options: Mapping[str, Any], count: int) -> dict[str, Convert] | None:
    """Return the variables of a layer; None if they are not known."""
    known = _KINDS.get(kind)
    if known is None or count > len(known):
        return None
    absent = {
        "bias": not options.get("use_bias", options.get("center", True)),
        "weight": not options.get("scale", True),
    }
    names = {name: one for name, one in known.items() if not absent.get(name)}
    return (
        dict(list(names.items())[:count])
        if kind in ("dense", "embedding")
        else (names if len(names) == count else None)
    )


def _layers(
    path: Path, file: Any, config: Mapping[str, Any]
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield group, kind and options of each layer that has variables, in the order of the model."""
    groups = [name for name in file["layers"] if len(_group_variables(file["layers"][name]))]
    nested = [name for name in file["layers"] if "layers" in file["layers"][name]]
    if nested:
        raise ConfigError(f"'{path}' has a model within the model ('{nested[0]}'): save it alone")
    kinds = {name: re.sub(r"_\d+$", "", name) for name in groups}
    if not config and len(set(kinds.values())) > 1:
        raise ConfigError(
            f"'{path}' does not say the order of its layers ({', '.join(groups)}): save the model "
            "as .keras"
        )
    if not config:
        yield from ((name, kinds[name], {}) for name in sorted(groups, key=_number))
        return
    counts: dict[str, int] = {}
    for layer in config["config"]["layers"]:
        kind = _snake(layer["class_name"])
        group = f"{kind}_{counts[kind]}" if kind in counts else kind
        counts[kind] = counts.get(kind, 0) + 1
        if group in groups:
            yield group, kind, layer["config"]
            groups.remove(group)
    if groups:
        raise ConfigError(f"'{path}' does not say the order of layer '{groups[0]}'")


def _group_variables(group: Any) -> Any:
    return group.get("vars", ())


def _number(group: str) -> int:
    found = re.search(r"_(\d+)$", group)
    return int(found[1]) if found else 0


def _snake(name: str) -> str:
    """Return the name that Keras gives to the group of a class: ``Conv2D`` → ``conv2d``."""
    return re.sub(
        r"([a-z])([A-Z])", r"\1_\2", re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    ).lower()


def _tensor(variables: Any, number: int) -> Tensor:
    return torch.from_numpy(variables[str(number)][()])


# The optimizer


def _read_optimizer(
    saved: SavedTraining,
    file: Any,
    optimizer: Mapping[str, Any],
    trained: list[tuple[str, Convert]],
) -> None:
    """Take the state of an optimizer that torch has too, as torch keeps it."""
    variables: Any = file["optimizer"]["vars"] if "optimizer" in file else ()
    if not len(variables):
        return
    saved.step = int(variables["0"][()])
    kind, options = optimizer.get("class_name", "unknown"), optimizer.get("config", {})
    slots = {"Adam": 2, "AdamW": 2, "SGD": 1}.get(kind, 0)
    if not slots or len(variables) != 2 + slots * len(trained) or options.get("amsgrad"):
        found = f"{len(variables)} variables" if kind in ("unknown", "SGD") else f"'{kind}'"
        saved.left_out.append(
            f"the optimizer state (of Keras's optimizers, Adam, AdamW and SGD with momentum in a "
            f".keras file can be converted, this is {found})"
        )
        return
    rate = float(variables["1"][()])
    state: dict[int, dict[str, Tensor]] = {}
    for index, (_, convert) in enumerate(trained):
        moments = [convert(_tensor(variables, 2 + slots * index + n)) for n in range(slots)]
        if slots == 2:
            step = torch.tensor(float(saved.step))
            state[index] = {"step": step, "exp_avg": moments[0], "exp_avg_sq": moments[1]}
        else:
            state[index] = {"momentum_buffer": moments[0] / -rate}  # Keras keeps the change itself
    group = {"lr": rate, "weight_decay": options.get("weight_decay") or 0.0, **_options(options)}
    saved.optimizers = [
        {"state": state, "param_groups": [{**group, "params": list(range(len(trained)))}]}
    ]


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a Keras optimizer by torch's names."""
    if "beta_1" in options:
        betas = (options["beta_1"], options["beta_2"])
        return {"betas": betas, "eps": options["epsilon"], "amsgrad": False}
    nesterov = bool(options.get("nesterov"))
    return {"momentum": options.get("momentum", 0.0), "dampening": 0, "nesterov": nesterov}
