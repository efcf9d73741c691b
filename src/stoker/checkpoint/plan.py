"""Which file each shared tensor, or piece of one, goes into.

Tensors below ``model`` have a file of their own, under the names of the model itself: others can
load it without knowing us.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from stoker.checkpoint.tree import MODEL, Json
from stoker.tree import is_sharded, local_part


@dataclass(slots=True)
class Share:
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


def share_alone(tensors: Mapping[str, Tensor]) -> Share:
    """All tensors, whole, for the only process."""
    share = Share()
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
