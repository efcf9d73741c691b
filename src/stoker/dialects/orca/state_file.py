"""The files that ``Estimator.save`` writes: the state, or the model, as torch saves it."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from torch import nn
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from stoker.core import dist
from stoker.core.errors import CheckpointError
from stoker.storage import atomic_file, explain_write_errors


def write(path: Path, value: Any) -> None:
    """Write a state or a model with `torch.save`, on the first rank."""
    if path.is_dir():
        raise ValueError(f"'{path}' is a folder, expected the path of a file, such as model.pth")
    if dist.is_main():
        with explain_write_errors(path), atomic_file(path) as temporary:
            torch.save(value, temporary)


def read(path: Path) -> Any:
    """Return the state or the model of a file, without running code of the file.

    A model is built from classes that are already imported here, or rejected.
    """
    try:
        names = get_unsafe_globals_in_checkpoint(str(path)) if is_zipfile(path) else []
        classes = [_module_class(name) for name in names]
        missing = [name for name, found in zip(names, classes, strict=True) if found is None]
        if not missing:
            with safe_globals(classes):
                return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"'{path}' is no file of tensors and plain values that torch.save has written"
        ) from error
    raise CheckpointError(
        f"'{path}' holds {missing[0]}, which is no model class that is imported here: "
        "import the module that defines it before load(), or save() without entire=True"
    )


def _module_class(name: str) -> Any:
    """Return the class of a model if a module that is imported defines it, else None."""
    module, _, last = name.rpartition(".")
    found = getattr(sys.modules.get(module), last, None)
    return found if isinstance(found, type) and issubclass(found, nn.Module) else None


def as_state(found: Any) -> dict[str, Any]:
    """Return the state in what a file holds: a state, the weights of a model, or models."""
    if isinstance(found, Mapping) and "models" in found:
        for name in ("models", "optimizers", "schedulers"):
            held = found.get(name, [])
            if not isinstance(held, list | tuple) or len(held) > 1:
                what = len(held) if isinstance(held, list | tuple) else type(held).__name__
                raise CheckpointError(f"the state has {what} as {name!r}, expected a list of one")
        return dict(found)
    several = found if isinstance(found, list | tuple) else [found]
    weights = [one.state_dict() if isinstance(one, nn.Module) else one for one in several]
    if not all(isinstance(one, Mapping) for one in weights):
        raise CheckpointError(
            f"the file holds a {type(found).__name__}, expected a state with 'models', or weights"
        )
    return {"models": weights}
