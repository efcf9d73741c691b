"""Which file each shared tensor, or piece of one, goes into.

Tensors below ``model`` have a file of their own, under the names of the model itself: others can
load it without knowing us.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from stoker.checkpoint.format.state_tree import MODEL, Json
from stoker.core.errors import CheckpointError
from stoker.core.tree import is_sharded, local_part


@dataclass(slots=True)
class WritePlan:
    """What one process writes, and which tensors are in several pieces.

    Args:
        pieces: file → name in it → name of the tensor.
        split: name of a tensor → its dtype, whole shape, and where each piece stands.
    """

    pieces: dict[str, dict[str, str]] = field(default_factory=dict)
    split: dict[str, Json] = field(default_factory=dict)

    def files(self, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """File → name in it → the tensor, as far as this process holds it."""
        return {
            file: {name: local_part(tensors[key]) for name, key in names.items()}
            for file, names in self.pieces.items()
        }


def share_alone(tensors: Mapping[str, Tensor]) -> WritePlan:
    """All tensors, whole, for the only process."""
    share = WritePlan()
    for key in tensors:
        part, name = part_of(key)
        share.pieces.setdefault(f"{part}.safetensors", {})[name] = key
    return share


def part_of(key: str) -> tuple[str, str]:
    """The kind of file a tensor belongs to, and its name there."""
    return ("model", key.removeprefix(MODEL)) if key.startswith(MODEL) else ("state", key)


def key_of(file: str, name: str) -> str:
    """The name of the tensor that stands under ``name`` in a file: `part_of` turned round."""
    return MODEL + name if file.startswith("model") else name


def signature(tensors: Mapping[str, Tensor]) -> str:
    """Equal as long as the tensors can be shared out as before."""
    return repr([(key, t.dtype, tuple(t.shape), _placing(t)) for key, t in tensors.items()])


def _placing(tensor: Any) -> object:
    if not is_sharded(tensor):
        return None
    return (tensor.placements, tensor.device_mesh.mesh.tolist(), tuple(local_part(tensor).shape))


def merge(trees: list[Json]) -> Json:
    """What all ranks have, each adding the keys the others lack; a contradiction is an error."""
    whole = trees[0]
    for rank, tree in enumerate(trees[1:], start=1):
        whole = _join(whole, tree, rank, ())
    return whole


def _join(one: Json, other: Json, rank: int, path: tuple[str, ...]) -> Json:
    if one == other:
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        if "$ordered" in one and "$ordered" in other:
            return one | {
                "$ordered": _join_pairs(one["$ordered"], other["$ordered"], rank, path),
                "notes": _join(one["notes"], other["notes"], rank, path),
            }
        if "$dict" in one and "$dict" in other:
            return {"$dict": _join_pairs(one["$dict"], other["$dict"], rank, path)}
        if not any(key.startswith("$") for key in (*one, *other)):
            return _join_objects(one, other, rank, path)
    raise CheckpointError(
        f"shared → {' → '.join(path)} is {_short(one)} on rank 0 and {_short(other)} on rank "
        f"{rank}, expected the same on all: what belongs to each rank alone goes into 'own'"
    )


def _join_objects(
    one: dict[str, Json], other: dict[str, Json], rank: int, path: tuple[str, ...]
) -> Json:
    joined = dict(one)
    for key, value in other.items():
        joined[key] = _join(one[key], value, rank, (*path, key)) if key in one else value
    return joined


def _join_pairs(one: Json, other: Json, rank: int, path: tuple[str, ...]) -> Json:
    joined = {repr(key): [key, value] for key, value in one}
    for key, value in other:
        known = joined.get(repr(key))
        both = value if known is None else _join(known[1], value, rank, (*path, str(key)))
        joined[repr(key)] = [key, both]
    return list(joined.values())


def _short(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
