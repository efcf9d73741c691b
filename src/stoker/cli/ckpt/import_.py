"""What torch.save wrote, read without running code unless its maker is trusted."""

import argparse
import json
import pickle
import re
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stoker.checkpoint.format.names import MANIFEST
from stoker.cli.ckpt.weights_file import check_output, save_safetensors
from stoker.cli.exit_codes import OK
from stoker.config.yaml_text import ConfigError
from stoker.storage import format_size, local_path


def unpickled(path: Path, *, trust: bool) -> Any:
    """The contents of a file of torch.save; only tensors and plain values unless trusted."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they warn of is refused in words
            return torch.load(path, map_location="cpu", weights_only=not trust)
    except Exception as error:  # of bytes that mean nothing, any can come
        raise ConfigError(_reason(path, error, trust)) from error


def _reason(path: Path, error: Exception, trust: bool) -> str:
    """Why a file was refused, in one sentence."""
    message = str(error)
    asks = re.search(r"GLOBAL ([\w.]+)", message)
    if not trust and "TorchScript" in message:
        what = "a TorchScript program"
    elif not trust and asks:
        what = f"a pickle that asks for '{asks[1]}'"
    elif not trust and isinstance(error, pickle.UnpicklingError):
        what = "a pickle of more than weights"
    else:
        said = " ".join(f"{type(error).__name__} {message}".split())
        return f"'{path}' is no file that torch can load: {said[:200]}"
    return (
        f"'{path}' is {what}, which can run any code when it is loaded: give --trust if you know "
        "who made it"
    )


_WHOLE = ("model.safetensors", "pytorch_model.bin")
_INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_INSIDE = ("state_dict", "model_state_dict", "model", "module")
"""Where programs put a state dict beside other things: Lightning, tutorials, many, DeepSpeed."""

_PREFIXES = ("model.", "module.", "_orig_mod.")
"""What Lightning modules, DataParallel and torch.compile put before every name."""


def import_(options: argparse.Namespace) -> int:
    """Read weights, bare their names, and write them."""
    source = local_path(options.file)
    output = local_path(options.output, "--output")
    check_output(output, (".safetensors",))
    if not source.exists():
        raise ConfigError(f"there is no '{source}'")
    found = _from_folder(source, options.trust) if source.is_dir() else None
    if found is None:
        found = _from_file(source, options.trust)
    weights = _only_tensors(_bare_names(found))
    save_safetensors(output, weights)
    numbers = sum(value.numel() for value in weights.values())
    size = format_size(output.stat().st_size)
    print(f"{output}: {len(weights)} tensors, {numbers:,} numbers, {size}")
    return OK


def _from_folder(folder: Path, trust: bool) -> dict[str, Any]:
    """The weights of a Hugging Face folder; safetensors before pickles."""
    if (folder / MANIFEST).exists():
        raise ConfigError(f"'{folder}' is a checkpoint of Stoker: use stoker ckpt export")
    for whole, index in zip(_WHOLE, _INDEX, strict=True):
        if (folder / whole).is_file():
            return _from_file(folder / whole, trust)
        if (folder / index).is_file():
            return _from_shards(folder / index, trust)
    raise ConfigError(f"'{folder}' holds no weights: expected one of {', '.join(_WHOLE + _INDEX)}")


def _from_shards(index: Path, trust: bool) -> dict[str, Any]:
    try:
        table = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names: set[str] = set(table.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"'{index}' is no index of weights: {error}") from error
    weights: dict[str, Any] = {}
    for name in sorted(names):
        shard = index.parent / name
        if Path(name).name != name or not shard.is_file():
            raise ConfigError(f"'{index}' names '{name}', which is no file beside it")
        weights |= _from_file(shard, trust)
    missing = [name for name in table if name not in weights]
    if missing:
        raise ConfigError(
            f"'{index}' names {len(missing)} weights that no shard has, such as '{missing[0]}'"
        )
    return weights


def _from_file(path: Path, trust: bool) -> dict[str, Any]:
    if path.name in _INDEX:
        return _from_shards(path, trust)
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return dict(load_file(path))
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"'{path}' cannot be read: {error}") from error
    return _state_dict(unpickled(path, trust=trust), path)


def _state_dict(loaded: Any, path: Path) -> dict[str, Any]:
    """The state dict in what was unpickled; where it stood is said."""
    if isinstance(loaded, nn.Module):
        return dict(loaded.state_dict())
    if not isinstance(loaded, Mapping):
        raise ConfigError(f"'{path}' holds a {type(loaded).__name__}, expected a state dict")
    for key in _INSIDE:
        inner = loaded.get(key)
        if isinstance(inner, nn.Module):
            inner = inner.state_dict()
        if isinstance(inner, Mapping) and _is_state_dict(inner):
            _say(f"weights of '{key}' in {path.name}; nothing else of it is taken")
            return dict(inner)
    if _is_state_dict(loaded):
        return dict(loaded)
    keys = ", ".join(map(str, list(loaded)[:8]))
    raise ConfigError(f"'{path}' holds no state dict that can be told: its keys are {keys}")


def _is_state_dict(value: Mapping[Any, Any]) -> bool:
    """Whether it has names and tensors; what a module adds of its own, only under its own key."""
    named = bool(value) and all(isinstance(key, str) for key in value)
    return named and all(
        isinstance(one, Tensor) or key.endswith("_extra_state") for key, one in value.items()
    )


def _bare_names(weights: dict[str, Any]) -> dict[str, Any]:
    """Names without what stands before all of them."""
    stripped = ""
    while prefix := next((p for p in _PREFIXES if all(n.startswith(p) for n in weights)), ""):
        weights = {name.removeprefix(prefix): value for name, value in weights.items()}
        stripped += prefix
    if stripped:
        _say(f"stripped '{stripped}' from every name")
    return weights


def _only_tensors(weights: dict[str, Any]) -> dict[str, Tensor]:
    left_out = [name for name, value in weights.items() if not isinstance(value, Tensor)]
    if left_out:
        _say(f"left out, as they are no tensors: {', '.join(left_out)}")
    return {name: value for name, value in weights.items() if isinstance(value, Tensor)}


def _say(text: str) -> None:
    print(text, file=sys.stderr)
