"""Which file each shared tensor, or piece of one, is written to, and the values of all ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from stoker.checkpoint.format.names import tensor_file, tensor_place
from stoker.checkpoint.format.state_tree import Json
from stoker.core.errors import CheckpointError
from stoker.core.tree import is_sharded, local_part


@dataclass(slots=True)
class WritePlan:
    """What one rank writes, and which tensors of the job are stored in several pieces.

    Args:
        pieces: file → name in the file → key of the tensor.
        split: key of a tensor → its dtype, global shape, and the place of each piece.
    """

    pieces: dict[str, dict[str, str]] = field(default_factory=dict)
    split: dict[str, Json] = field(default_factory=dict)

    def files(self, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """Return file → name in the file → the local part of the tensor."""
        return {
            file: {name: local_part(tensors[key]) for name, key in names.items()}
            for file, names in self.pieces.items()
        }


def plan_single_process(tensors: Mapping[str, Tensor]) -> WritePlan:
    """Return the plan of the only rank: all tensors, unsharded."""
    plan = WritePlan()
    for key in tensors:
        kind, name = tensor_place(key)
        plan.pieces.setdefault(tensor_file(kind, 0, 1, 1), {})[name] = key
    return plan


def signature(tensors: Mapping[str, Tensor]) -> str:
    """Return a text that stays the same as long as an earlier plan fits the tensors."""
    return repr([(key, t.dtype, tuple(t.shape), _placement(t)) for key, t in tensors.items()])


def _placement(tensor: Any) -> object:
    if not is_sharded(tensor):
        return None
    return (tensor.placements, tensor.device_mesh.mesh.tolist(), tuple(local_part(tensor).shape))


def merge_values(trees: list[Json]) -> Json:
    """Merge the values of all ranks; each may have keys that others lack.

    Raises:
        CheckpointError: two ranks have different values under the same key.
    """
    merged = trees[0]
    for rank, tree in enumerate(trees[1:], start=1):
        merged = _merge(merged, tree, rank, ())
    return merged


def _merge(one: Json, other: Json, rank: int, path: tuple[str, ...]) -> Json:
    if one == other:
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        if "$ordered" in one and "$ordered" in other:
            return one | {
                "$ordered": _merge_pairs(one["$ordered"], other["$ordered"], rank, path),
                "notes": _merge(one["notes"], other["notes"], rank, path),
            }
        if "$dict" in one and "$dict" in other:
            return {"$dict": _merge_pairs(one["$dict"], other["$dict"], rank, path)}
        if not any(key.startswith("$") for key in (*one, *other)):
            return _merge_objects(one, other, rank, path)
    raise CheckpointError(
        f"shared → {' → '.join(path)} is {_shorten(one)} on rank 0 and {_shorten(other)} on rank "
        f"{rank}, expected the same on all ranks: pass values that differ as 'own'"
    )


def _merge_objects(
    one: dict[str, Json], other: dict[str, Json], rank: int, path: tuple[str, ...]
) -> Json:
    merged = dict(one)
    for key, value in other.items():
        merged[key] = _merge(one[key], value, rank, (*path, key)) if key in one else value
    return merged


def _merge_pairs(one: Json, other: Json, rank: int, path: tuple[str, ...]) -> Json:
    merged = {repr(key): [key, value] for key, value in one}
    for key, value in other:
        known = merged.get(repr(key))
        both = value if known is None else _merge(known[1], value, rank, (*path, str(key)))
        merged[repr(key)] = [key, both]
    return list(merged.values())


def _shorten(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
