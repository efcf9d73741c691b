"""Load the weights of a model alone, from a checkpoint or a safetensors file."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stoker.checkpoint import CheckpointError
from stoker.checkpoint.format.names import is_here, step_in_name
from stoker.checkpoint.format.validation import cause
from stoker.checkpoint.format.weights_file import StoredWeight, list_weights
from stoker.checkpoint.read.load import read_weights
from stoker.core.log import get_logger
from stoker.engine import unwrap
from stoker.parallel import local_weights, shard_like, tied_names
from stoker.resume.lookup import find_candidates, first_readable
from stoker.rundir import files
from stoker.storage.mirror import located

_log = get_logger()

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def load_weights(model: nn.Module, path: str | Path, *, log: bool = True) -> dict[str, list[str]]:
    """Load the weights that fit, and report those that do not.

    Args:
        model: receives the weights of the same names and shapes.
        path: a ``.safetensors`` file, a folder of them as Hugging Face writes it, a checkpoint, or
            a folder or run with checkpoints in it; or the URL of one in an object store. Of files,
            a process reads one tensor at a time and keeps its shard.
        log: whether to log a warning about weights that do not fit.

    Returns:
        The names that are "missing", "unexpected" and "of another shape".
    """
    saved = _weights_in(located(path))
    own = unwrap(model).state_dict()
    here = local_weights(unwrap(model), saved)
    _warn_about_ties(path, unwrap(model), saved)
    mismatches = compare_weights(own, here)
    fitting = {name: t for name, t in here.items() if name in own and _fits(t, own[name], name)}
    for part in _portions(fitting):
        unwrap(model).load_state_dict(
            {n: shard_like(t, own[n]) for n, t in part.items()}, strict=False
        )
    for what, names in mismatches.items():
        if names and log:
            _log.warning(f"weights of {path}, {what}: {', '.join(names)}")
    return mismatches


def _warn_about_ties(path: str | Path, model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Warn about weights that are tied in the model and differ in the file."""
    for names in tied_names(model):
        first, *others = [name for name in names if name in saved] or names[:1]
        for other in others:
            if not torch.equal(_read(saved[first]), _read(saved[other])):
                _log.warning(
                    f"weights of {path}: {first} and {other} are one parameter of this model, but "
                    f"differ in the file; {first} is used for both"
                )


def compare_weights(own: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return how saved weights differ from a model's: missing, unexpected, of another shape."""
    return {
        "missing": [name for name in own if name not in saved],
        "unexpected": [name for name in saved if name not in own],
        "of another shape": [
            f"{name} {_shape(saved[name])} instead of {_shape(own[name])}"
            for name in own
            if name in saved and not _fits(saved[name], own[name], name)
        ],
    }


def _fits(saved: Any, own: Any, name: str) -> bool:
    """Return whether two weights have the same shape; extra state of modules may be anything."""
    if name.rpartition(".")[2] == "_extra_state":
        return True
    return _shape(saved) == _shape(own)


def _shape(value: Any) -> str:
    return str(list(value.shape)) if hasattr(value, "shape") else f"a {type(value).__name__}"


def _portions(weights: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield weights in portions; those in files are read now, up to the size of the largest."""
    part: dict[str, Any] = {name: one for name, one in weights.items() if not _is_stored(one)}
    if part:
        yield part
    stored = {name: one for name, one in weights.items() if _is_stored(one)}
    limit = max((one.shape.numel() for one in stored.values()), default=0)
    part, size = {}, 0
    for name, one in stored.items():
        if part and size + one.shape.numel() > limit:
            yield part
            part, size = {}, 0
        part[name] = one.read()
        size += one.shape.numel()
    if part:
        yield part


def _is_stored(value: Any) -> bool:
    return isinstance(value, StoredWeight)


def _read(value: Any) -> Any:
    return value.read() if _is_stored(value) else value


def _weights_in(path: Path) -> dict[str, Any]:
    if _is_of_hugging_face(path):
        return _in_folder(path)
    if not path.is_file():
        return first_readable(find_candidates(path, None), read_weights) or {}
    try:
        return list_weights(path)
    except Exception as error:
        raise CheckpointError(
            f"'{path}' is not a safetensors file ({cause(error)}): convert weights of other tools "
            "with 'stoker ckpt import'"
        ) from error


def _is_of_hugging_face(folder: Path) -> bool:
    """Return whether a folder has weights, and is no checkpoint or run of ours, however damaged."""
    if is_here(folder) or step_in_name(folder.name) is not None:
        return False
    is_run = (folder / files.CHECKPOINTS).exists() or (folder / files.IDENTITY).exists()
    return not is_run and any((folder / name).is_file() for name in (_INDEX, _SINGLE))


def _in_folder(folder: Path) -> dict[str, Any]:
    """Return the weights in a folder as Hugging Face writes it: one file, or several with an index.

    Raises:
        CheckpointError: the index cannot be read, or a file lacks a weight that the index lists.
    """
    try:
        if not (folder / _INDEX).is_file():
            return list_weights(folder / _SINGLE)
        places = json.loads((folder / _INDEX).read_text())["weight_map"]
        files = {name: list_weights(folder / name) for name in sorted({*places.values()})}
        return {weight: files[name][weight] for weight, name in places.items()}
    except Exception as error:
        raise CheckpointError(
            f"the weights in '{folder}' cannot be read ({cause(error)}): copy them again, with all "
            f"files that {_INDEX} lists if there is one"
        ) from error
