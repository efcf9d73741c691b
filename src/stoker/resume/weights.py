"""Load the weights of a model alone, from a checkpoint or a safetensors file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stoker.checkpoint import CheckpointError
from stoker.checkpoint.format.validation import cause
from stoker.checkpoint.format.weights_file import read_weights_file
from stoker.checkpoint.read.load import read_weights
from stoker.core.log import get_logger
from stoker.engine import unwrap
from stoker.parallel import local_weights, shard_like, tied_names
from stoker.resume.lookup import find_candidates, first_readable
from stoker.storage.mirror import located

_log = get_logger()


def load_weights(model: nn.Module, path: str | Path, *, log: bool = True) -> dict[str, list[str]]:
    """Load the weights that fit, and report those that do not.

    Args:
        model: receives the weights of the same names and shapes.
        path: a ``.safetensors`` file, a checkpoint, or a folder or run with checkpoints in it; or
            the URL of one in an object store.
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
    unwrap(model).load_state_dict(
        {n: shard_like(t, own[n]) for n, t in fitting.items()}, strict=False
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
            if not torch.equal(saved[first], saved[other]):
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


def _weights_in(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return first_readable(find_candidates(path, None), read_weights) or {}
    try:
        return read_weights_file(path)
    except Exception as error:
        raise CheckpointError(
            f"'{path}' is not a safetensors file ({cause(error)}): convert weights of other tools "
            "with 'stoker ckpt import'"
        ) from error
