"""``stoker ckpt import``: convert weights of other frameworks to safetensors."""

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
from stoker.cli.ckpt.weights_file import checked_output, save_safetensors
from stoker.cli.common import OK
from stoker.cli.output import emit
from stoker.config.yaml_text import ConfigError
from stoker.storage import format_size, local_path


def _unpickle(path: Path, *, trust: bool) -> Any:
    """Load a file of torch.save; without ``trust``, only tensors and plain values."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unsafe files raise an error below
            return torch.load(path, map_location="cpu", weights_only=not trust)
    except Exception as error:  # arbitrary bytes can raise anything
        raise ConfigError(_reason(path, error, trust)) from error


def _reason(path: Path, error: Exception, trust: bool) -> str:
    """Return why a file was rejected."""
    message = str(error)
    needed = re.search(r"GLOBAL ([\w.]+)", message)
    if not trust and "TorchScript" in message:
        what = "a TorchScript program"
    elif not trust and needed:
        what = f"a pickle that needs '{needed[1]}'"
    elif not trust and isinstance(error, pickle.UnpicklingError):
        what = "a pickle with more than weights"
    else:
        reason = " ".join(f"{type(error).__name__} {message}".split())
        return f"torch cannot load '{path}': {reason[:200]}"
    return (
        f"'{path}' is {what}, which can execute arbitrary code when loaded: pass --trust if you "
        "trust its source"
    )


_SINGLE = ("model.safetensors", "pytorch_model.bin")
_INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_INSIDE = ("state_dict", "model_state_dict", "model", "module")
"""Keys of the state dict in files of Lightning, tutorials, many others, and DeepSpeed."""

_PREFIXES = ("model.", "module.", "_orig_mod.")
"""Prefixes that Lightning modules, DataParallel and torch.compile add to every name."""


def import_(options: argparse.Namespace) -> int:
    """Read weights, strip common prefixes from their names, and write them."""
    source = local_path(options.file)
    output = checked_output(options.output, (".safetensors",))
    if not source.exists():
        raise ConfigError(f"there is no '{source}'")
    found = _from_folder(source, options.trust) if source.is_dir() else None
    if found is None:
        found = _from_file(source, options.trust)
    weights = _only_tensors(_strip_prefixes(found))
    save_safetensors(output, weights)
    numbers = sum(value.numel() for value in weights.values())
    size = output.stat().st_size
    text = f"{output}: {len(weights)} tensors, {numbers:,} numbers, {format_size(size)}"
    emit("import", text, output=output, tensors=len(weights), numbers=numbers, size=size)
    return OK


def _from_folder(folder: Path, trust: bool) -> dict[str, Any]:
    """Read the weights of a Hugging Face folder, preferably from safetensors."""
    if (folder / MANIFEST).exists():
        raise ConfigError(f"'{folder}' is a Stoker checkpoint: use stoker ckpt export")
    for single, index in zip(_SINGLE, _INDEX, strict=True):
        if (folder / single).is_file():
            return _from_file(folder / single, trust)
        if (folder / index).is_file():
            return _from_shards(folder / index, trust)
    raise ConfigError(
        f"'{folder}' contains no weights: expected one of {', '.join(_SINGLE + _INDEX)}"
    )


def _from_shards(index: Path, trust: bool) -> dict[str, Any]:
    try:
        table = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names: set[str] = set(table.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"'{index}' is not an index of weights: {error}") from error
    weights: dict[str, Any] = {}
    for name in sorted(names):
        shard = index.parent / name
        if Path(name).name != name or not shard.is_file():
            raise ConfigError(f"'{index}' lists '{name}', which is not a file in the same folder")
        weights |= _from_file(shard, trust)
    missing = [name for name in table if name not in weights]
    if missing:
        raise ConfigError(
            f"'{index}' lists {len(missing)} weights that no shard contains, such as '{missing[0]}'"
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
    return _state_dict(_unpickle(path, trust=trust), path)


def _state_dict(loaded: Any, path: Path) -> dict[str, Any]:
    """Return the state dict inside a loaded object; print where it was found."""
    if isinstance(loaded, nn.Module):
        return dict(loaded.state_dict())
    if not isinstance(loaded, Mapping):
        raise ConfigError(f"'{path}' contains a {type(loaded).__name__}, expected a state dict")
    for key in _INSIDE:
        inner = loaded.get(key)
        if isinstance(inner, nn.Module):
            inner = inner.state_dict()
        if isinstance(inner, Mapping) and _is_state_dict(inner):
            _print_note(f"weights of '{key}' in {path.name}; the rest of the file is ignored")
            return dict(inner)
    if _is_state_dict(loaded):
        return dict(loaded)
    keys = ", ".join(map(str, list(loaded)[:8]))
    raise ConfigError(f"'{path}' contains no recognizable state dict: its keys are {keys}")


def _is_state_dict(value: Mapping[Any, Any]) -> bool:
    """Return whether all values are tensors, or extra state under its own key."""
    named = bool(value) and all(isinstance(key, str) for key in value)
    return named and all(
        isinstance(one, Tensor) or key.endswith("_extra_state") for key, one in value.items()
    )


def _strip_prefixes(weights: dict[str, Any]) -> dict[str, Any]:
    """Remove prefixes that all names share."""
    stripped = ""
    while prefix := next((p for p in _PREFIXES if all(n.startswith(p) for n in weights)), ""):
        weights = {name.removeprefix(prefix): value for name, value in weights.items()}
        stripped += prefix
    if stripped:
        _print_note(f"stripped '{stripped}' from every name")
    return weights


def _only_tensors(weights: dict[str, Any]) -> dict[str, Tensor]:
    left_out = [name for name, value in weights.items() if not isinstance(value, Tensor)]
    if left_out:
        _print_note(f"skipped, because they are not tensors: {', '.join(left_out)}")
    return {name: value for name, value in weights.items() if isinstance(value, Tensor)}


def _print_note(text: str) -> None:
    print(text, file=sys.stderr)
