"""What dialects share: files that `torch.save` writes, and that are read without running code."""

import sys
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from torch import nn
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from stoker.core import dist
from stoker.core.errors import CheckpointError
from stoker.storage import atomic_file, explain_write_errors


def write(path: Path, value: Any, **options: Any) -> None:
    """Write a value with `torch.save`, which takes the options, on rank 0."""
    if path.is_dir():
        raise ValueError(f"'{path}' is a folder, expected the path of a file, such as model.pth")
    if dist.is_main():
        with explain_write_errors(path), atomic_file(path) as temporary:
            torch.save(value, temporary, **options)


def read(path: Path) -> Any:
    """Return the tensors and plain values of a file, or its model, on the CPU.

    A model is built from classes that are already imported here, or rejected.
    """
    try:
        names = get_unsafe_globals_in_checkpoint(str(path)) if is_zipfile(path) else []
        classes = [_module_class(name) for name in names]
        missing = [name for name, found in zip(names, classes, strict=True) if found is None]
        if not missing:
            with safe_globals(classes):
                return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # torch raises many kinds for a damaged file
        raise CheckpointError(
            f"'{path}' is no file of tensors and plain values that torch.save has written"
        ) from error
    raise CheckpointError(
        f"'{path}' holds {missing[0]}, which is no model class that is imported here: import the "
        "module that defines it first, or save the state_dict() instead of the model"
    )


def _module_class(name: str) -> Any:
    """Return the class of a model if a module that is imported defines it, else None."""
    module, _, last = name.rpartition(".")
    found = getattr(sys.modules.get(module), last, None)
    return found if isinstance(found, type) and issubclass(found, nn.Module) else None
