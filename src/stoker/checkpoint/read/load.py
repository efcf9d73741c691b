"""Verify a checkpoint, and load it, or part of it, into memory."""

import json
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.names import MODEL, STATE, open_checkpoint, rank_file
from stoker.checkpoint.format.state_tree import (
    Json,
    flatten,
    new_permuted,
    tensor_nodes,
    unflatten,
)
from stoker.checkpoint.format.tensor_file import TensorReader
from stoker.checkpoint.format.validation import cause, reading
from stoker.checkpoint.read.stored_tensors import StoredTensors, Template
from stoker.core import dist
from stoker.core.errors import CheckpointError
from stoker.core.tree import is_sharded
from stoker.storage import FileRecord, Storage


def verify_checkpoint(
    location: str | Path | Storage,
    *,
    quick: bool = False,
    structure: bool = True,
    known: Collection[str] = (),
) -> list[str]:
    """Return what is wrong with a checkpoint, one sentence per fault; none if it is complete.

    Files that the manifest does not list are ignored.

    Args:
        location: the folder of the checkpoint.
        quick: compare only the sizes of the files. Otherwise every byte is read, from the disk
            rather than from the page cache where the system allows it.
        structure: also check that the tensors fit into their files. A process that has just written
            them need not.
        known: files whose bytes have just been read and compared.
    """
    storage = open_checkpoint(location)
    try:
        manifest = Manifest.read(storage)
        files = manifest.files.items()
        faults = (_fault(storage, name, one, quick or name in known) for name, one in files)
        found = [fault for fault in faults if fault]
        if structure and not found:
            StoredTensors(storage, manifest)
    except CheckpointError as error:
        return [str(error)]
    return found


def _fault(storage: Storage, name: str, record: FileRecord, quick: bool) -> str:
    try:
        size = storage.size(name)
        if size is None:
            return f"'{name}' is missing"
        if size != record.size:
            return f"'{name}' has {size} bytes, expected {record.size}"
        found = record.xxh3_128 if quick else storage.checksum(name)
    except OSError as error:
        return f"'{name}' cannot be read: {cause(error)}"
    if found != record.xxh3_128:
        return f"'{name}' has checksum {found}, expected {record.xxh3_128}"
    return ""


@dataclass(slots=True)
class Loaded:
    """The contents of a checkpoint.

    Args:
        step: the step it was saved at.
        shared: the state that all processes have in common, in new memory.
        own: the state of this rank alone; None if the checkpoint has no such rank.
        info: what was passed to the save as ``info``.
        world_size: the number of processes that saved it.
        finish_reading: reads the tensors of ``shared`` that are still on the meta device.
    """

    step: int
    shared: Any
    own: Any
    info: dict[str, Any]
    world_size: int
    finish_reading: Callable[[], None] = lambda: None


class CheckpointReader:
    """Reads a complete checkpoint in portions: first what decides whether it fits, then tensors.

    Attributes:
        manifest: the manifest.
        values: the shared state as a JSON tree.
    """

    def __init__(self, location: str | Path | Storage) -> None:
        self._storage = open_checkpoint(location)
        self._read: dict[str, Tensor] = {}
        with self._reading():
            self.manifest = Manifest.read(self._storage)
            self.values: Json = json.loads(self._storage.read(STATE))
            self._stored = StoredTensors(self._storage, self.manifest)

    def _reading(self) -> AbstractContextManager[None]:
        return reading(f"checkpoint '{self._storage}'")

    def read(self, template: Template, rank: int | None = None) -> Loaded:
        """Return the contents; tensors that the template puts on the meta device are not read."""
        shared, manifest = self.read_part(self.values, template), self.manifest
        with self._reading():
            own = read_own(self._storage, manifest, dist.rank() if rank is None else rank)
        return Loaded(manifest.step, shared, own, manifest.info, manifest.world_size)

    def read_part(self, node: Json, template: Template) -> Any:
        """Return part of the shared state; tensors that have been read already are not read again.

        Args:
            node: a node of `values`.
            template: the memory of each tensor.
        """
        with self._reading():
            nodes = tensor_nodes(node)

            def memory(key: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
                found = template(key, shape, dtype)
                if found is None and "stride" in nodes[key]:
                    return new_permuted(shape, nodes[key]["stride"], dtype)
                return found

            found = self._stored.read(nodes.keys() - self._read.keys(), memory)
            self._read |= {key: one for key, one in found.items() if not one.is_meta}
            return unflatten(found | self._read, node)


def read_checkpoint(
    location: str | Path | Storage, into: Any = None, rank: int | None = None
) -> Loaded:
    """Read a complete checkpoint; see `Checkpoints.load`."""
    return CheckpointReader(location).read(_template_of(into), rank)


def read_weights(location: str | Path | Storage) -> dict[str, Any]:
    """Return the unsharded tensors of the model by their own names, and its extra state."""
    storage = open_checkpoint(location)
    with reading(f"checkpoint '{storage}'"):
        stored = StoredTensors(storage, Manifest.read(storage))
        values = _extra_values(json.loads(storage.read(STATE)))
        within = tensor_nodes(values)
        keys = {key for key in stored.tensors if key.startswith(MODEL) and key not in within}
        weights = {key.removeprefix(MODEL): one for key, one in stored.read(keys).items()}
        return weights | dict(unflatten(stored.read(within), values))


def model_keys(state: Any) -> dict[str, str]:
    """Return the key of each tensor of the model by its name, from a JSON tree."""
    model = _model_values(state)
    return {name: one["$tensor"] for name, one in model.items() if _is_tensor(one)}


def _extra_values(state: Any) -> dict[str, Any]:
    """Return the values of the model in a JSON tree that are not tensors, by name."""
    return {name: one for name, one in _model_values(state).items() if not _is_tensor(one)}


def _model_values(state: Any) -> dict[str, Any]:
    model = state.get("model") if isinstance(state, dict) else None
    if isinstance(model, dict) and "$ordered" in model:
        model = dict(model["$ordered"])
    found = model.items() if isinstance(model, dict) else ()
    return {name: one for name, one in found if not name.startswith("$")}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, dict) and "$tensor" in value


def read_own(location: str | Path | Storage, manifest: Manifest, rank: int) -> Any:
    """Return the state of one rank alone; None if the checkpoint has no such rank."""
    storage = open_checkpoint(location)
    values, tensors = rank_file(rank, "json"), rank_file(rank, "safetensors")
    if values not in manifest.files:
        return None
    own: dict[str, Tensor] = {}
    with reading(f"the state of rank {rank} in '{storage}'"):
        if tensors in manifest.files:
            reader = TensorReader(storage, tensors)
            own = {key: reader.view(key).clone() for key in reader.entries}
        return unflatten(own, json.loads(storage.read(values)))


def _template_of(into: Any) -> Template:
    """Return a function that makes tensors sharded like those of a state of the same structure."""
    tensors, _ = flatten(into)

    def template(key: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
        found = tensors.get(key)
        if found is None or not is_sharded(found):
            return None
        if tuple(found.shape) == shape:
            return torch.empty_like(found, dtype=dtype)
        shapes = f"{list(shape)} in the checkpoint and {list(found.shape)} in this run"
        raise CheckpointError(f"'{key}' has shape {shapes}, expected the same shape")

    return template
