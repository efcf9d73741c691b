"""A checkpoint read back into the state it was made of."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from stoker import dist
from stoker.checkpoint.manifest import Manifest
from stoker.checkpoint.source import Source
from stoker.checkpoint.tensorfile import TensorReader
from stoker.checkpoint.tree import flatten, tensor_names, unflatten


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


def read_checkpoint(path: Path, into: Any = None) -> Loaded:
    """Read all of it; see `Checkpoints.load`."""
    manifest = Manifest.read(path)
    values = json.loads((path / "state.json").read_text(encoding="utf-8"))
    like, _ = flatten(into)
    tensors = Source(path, manifest).read(tensor_names(values), like)
    shared = unflatten(tensors, values)
    own = read_own(path, manifest, dist.rank())
    return Loaded(manifest.step, shared, own, manifest.info, manifest.world_size)


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
