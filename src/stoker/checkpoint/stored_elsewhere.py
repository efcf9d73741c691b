"""Leave out files of a checkpoint whose tensors are stored elsewhere, and restore them.

Of such a file only the header is kept. The manifest still has its checksum, so that a tensor that
has changed in the meantime is detected when the restored checkpoint is verified.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor

from stoker.checkpoint.format.names import tensor_key
from stoker.core.errors import CheckpointError

_HEADER = ".header"


def leave_out(checkpoint: Path, keys: Collection[str]) -> None:
    """Remove the files of shared tensors all of whose keys are among ``keys``."""
    for path in checkpoint.glob("*.safetensors"):
        with path.open("rb") as file:
            size = file.read(8)
            header = size + file.read(int.from_bytes(size, "little"))
        own = path.name.startswith("rank-")
        if not own and all(tensor_key(path.name, name) in keys for name in _names(header)):
            path.with_name(path.name + _HEADER).write_bytes(header)
            path.unlink()


def is_incomplete(checkpoint: Path) -> bool:
    """Return whether files were left out."""
    return any(checkpoint.glob(f"*{_HEADER}"))


def restore(checkpoint: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the files that were left out, from tensors by their keys."""
    for path in checkpoint.glob(f"*{_HEADER}"):
        header, name = path.read_bytes(), path.name.removesuffix(_HEADER)
        with path.with_name(name).open("wb") as file:
            file.write(header)
            for key in (tensor_key(name, one) for one in _names(header)):
                if key not in tensors:
                    raise CheckpointError(f"'{checkpoint}' is damaged: {key!r} is missing")
                file.write(tensors[key].contiguous().flatten().view(torch.uint8).numpy().data)


def _names(header: bytes) -> list[str]:
    """Return the names of the tensors in the order of their bytes."""
    table = json.loads(header[8:])
    table.pop("__metadata__", None)
    return sorted(table, key=lambda name: table[name]["data_offsets"])
