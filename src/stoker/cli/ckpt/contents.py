"""What is in a checkpoint, without its tensors: values, and names, types and shapes."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from stoker.checkpoint import CheckpointError, unflatten
from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.names import STATE
from stoker.checkpoint.format.state_tree import Json, tensor_names
from stoker.checkpoint.format.tensor_file import DTYPES
from stoker.checkpoint.read.stored_tensors import StoredTensor, StoredTensors
from stoker.checkpoint.read.verify import verify_checkpoint
from stoker.storage import open_storage


@dataclass
class Contents:
    """A checkpoint as its manifest, its shared values, and where each tensor stands."""

    path: Path
    manifest: Manifest
    values: Json
    stored: StoredTensors

    @classmethod
    def read(cls, path: Path, *, verify: bool) -> "Contents":
        """Read it; unless ``verify``, only what the manifest and file sizes tell is checked.

        Raises:
            CheckpointError: it is damaged.
        """
        faults = verify_checkpoint(path, quick=not verify)
        if not faults:
            try:
                storage = open_storage(path)
                manifest = Manifest.read(storage)
                values = json.loads(storage.read(STATE))
                return cls(path, manifest, values, StoredTensors(storage, manifest))
            except (OSError, ValueError, KeyError, TypeError) as error:
                faults = verify_checkpoint(path) or [f"it cannot be read: {error}"]
        raise CheckpointError(f"checkpoint '{path}' is damaged: {'; '.join(faults)}")

    def part(self, *keys: str) -> Json:
        """The values below some keys; nothing where there are none."""
        node = self.values
        for key in keys:
            node = node.get(key) if isinstance(node, dict) else None
        return {} if node is None else node

    def tensors(self, node: Json) -> dict[str, StoredTensor]:
        """The tensors that values refer to, by name, each once, in their order."""
        return {name: self.stored.tensors[name] for name in _names(node)}

    def load(self, node: Json) -> object:
        """Values with their tensors, in fresh memory."""
        return unflatten(self.stored.read(tensor_names(node)), node)

    def check_run(self) -> None:
        """Refuse a checkpoint that a run did not make."""
        if not isinstance(self.values, dict) or not {"model", "engine", "run"} <= set(self.values):
            raise CheckpointError(f"'{self.path}' is a checkpoint, but not of a run")


def verified(path: Path) -> Contents:
    """The contents of a checkpoint of a run, every byte of it checked."""
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
    """The size of a tensor."""
    return prod(stored.shape) * stored.dtype.itemsize


def dtype_name(stored: StoredTensor) -> str:
    """What safetensors calls the type of a tensor."""
    return DTYPES[stored.dtype]
