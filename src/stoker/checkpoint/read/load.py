"""A checkpoint read back into the state it was made of."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.state_tree import MODEL, flatten, tensor_names, unflatten
from stoker.checkpoint.format.tensor_file import TensorReader
from stoker.checkpoint.read.pieces import Like, Source
from stoker.core import dist
from stoker.core.errors import CheckpointError
from stoker.core.tree import is_sharded


@dataclass(slots=True)
class Loaded:
    """What a checkpoint held.

    Args:
        step: the step it was made at.
        shared: the state of all processes, in fresh memory.
        own: what belonged to the process of this rank; None if there was no such process.
        info: what the save was given to note.
        world_size: how many processes made it.
    """

    step: int
    shared: Any
    own: Any
    info: dict[str, Any]
    world_size: int


def read_checkpoint(path: Path, into: Any = None, rank: int | None = None) -> Loaded:
    """Read all of it; see `Checkpoints.load`."""
    manifest = Manifest.read(path)
    values = json.loads((path / "state.json").read_text(encoding="utf-8"))
    like: Like = into if callable(into) else _like(into)
    tensors = Source(path, manifest).read(tensor_names(values), like)
    shared = unflatten(tensors, values)
    own = read_own(path, manifest, dist.rank() if rank is None else rank)
    return Loaded(manifest.step, shared, own, manifest.info, manifest.world_size)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of the model alone, whole, by its own names, however many files hold them."""
    source = Source(path, Manifest.read(path))
    keys = {key for key in source.stored if key.startswith(MODEL)}
    tensors = source.read(keys, lambda key, shape: None)
    return {key.removeprefix(MODEL): tensor for key, tensor in tensors.items()}


def _like(into: Any) -> Like:
    """The tensor of the same name in a tree of the same form."""
    tensors, _ = flatten(into)

    def like(key: str, shape: tuple[int, ...]) -> Tensor | None:
        pattern = tensors.get(key)
        if pattern is None or not is_sharded(pattern) or tuple(pattern.shape) == shape:
            return pattern
        shapes = f"{list(shape)} in the checkpoint and {list(pattern.shape)} in this run"
        raise CheckpointError(f"'{key}' has shape {shapes}, expected the same")

    return like


def read_own(path: Path, manifest: Manifest, rank: int) -> Any:
    """What belonged to the process of a rank; None if there was no such process."""
    name = f"rank-{rank:05}"
    if f"{name}.json" not in manifest.files:
        return None
    tensors: dict[str, Tensor] = {}
    if f"{name}.safetensors" in manifest.files:
        reader = TensorReader(path / f"{name}.safetensors")
        tensors = {key: reader.view(key).clone() for key in reader.entries}
    return unflatten(tensors, json.loads((path / f"{name}.json").read_text(encoding="utf-8")))
