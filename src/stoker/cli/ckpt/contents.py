"""The contents of a checkpoint without loading its tensors."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from stoker.checkpoint import CheckpointError, unflatten
from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.names import STATE, open_checkpoint
from stoker.checkpoint.format.state_tree import Json, tensor_nodes
from stoker.checkpoint.format.tensor_file import DTYPES
from stoker.checkpoint.format.validation import reading
from stoker.checkpoint.read.load import verify_checkpoint
from stoker.checkpoint.read.stored_tensors import StoredTensor, StoredTensors


@dataclass
class Contents:
    """A checkpoint: its manifest, its shared values, and the location of each tensor."""

    path: Path
    manifest: Manifest
    values: Json
    stored: StoredTensors

    @classmethod
    def read(cls, path: Path, *, verify: bool) -> "Contents":
        """Read a checkpoint. Without ``verify``, only the manifest and file sizes are checked.

        Raises:
            CheckpointError: it is damaged.
        """
        faults = verify_checkpoint(path, quick=not verify, structure=False)
        if faults:
            raise CheckpointError(f"checkpoint '{path}' is damaged: {'; '.join(faults)}")
        try:
            with reading("it"):
                storage = open_checkpoint(path)
                manifest = Manifest.read(storage)
                values = json.loads(storage.read(STATE))
                return cls(path, manifest, values, StoredTensors(storage, manifest))
        except CheckpointError as error:
            faults = verify_checkpoint(path) or [str(error)]
            raise CheckpointError(f"checkpoint '{path}' is damaged: {'; '.join(faults)}") from error

    def part(self, *keys: str) -> Json:
        """Return the values below some keys, or an empty dict."""
        node = self.values
        for key in keys:
            node = node.get(key) if isinstance(node, dict) else None
        return node if isinstance(node, dict) else {}

    def tensors(self, node: Json) -> dict[str, StoredTensor]:
        """Return the tensors that values refer to, by name, in order."""
        with reading(f"checkpoint '{self.path}'"):
            return {name: self.stored.tensors[name] for name in _names(node)}

    def load(self, node: Json) -> object:
        """Load values together with their tensors."""
        with reading(f"checkpoint '{self.path}'"):
            return unflatten(self.stored.read(tensor_nodes(node)), node)

    def check_run(self) -> None:
        """Raise `CheckpointError` unless a run saved the checkpoint."""
        if not isinstance(self.values, dict) or not {"model", "engine", "run"} <= set(self.values):
            raise CheckpointError(f"'{self.path}' is a checkpoint, but not one of a run")


def read_verified(path: Path) -> Contents:
    """Read the checkpoint of a run and check every byte of it."""
    contents = Contents.read(path, verify=True)
    contents.check_run()
    return contents


def _names(node: Json) -> Iterator[str]:
    if isinstance(node, dict):
        if "$tensor" in node:
            yield node["$tensor"]
        node = list(node.values())
    for below in node if isinstance(node, list) else ():
        yield from _names(below)


def bytes_of(stored: StoredTensor) -> int:
    """Return the size of a tensor in bytes."""
    return prod(stored.shape) * stored.dtype.itemsize


def dtype_name(stored: StoredTensor) -> str:
    """Return the safetensors name of a tensor's type."""
    return DTYPES[stored.dtype]
