"""Weights as one safetensors file; state of modules that is not a tensor goes into its metadata."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Size, Tensor

from stoker.checkpoint.format.state_tree import flatten, tensor_nodes, unflatten

_EXTRA = "extra_state"


def write_weights(path: Path, weights: Mapping[str, Any], step: int) -> None:
    """Write a state dict; it may have values that `get_extra_state` of a module returned."""
    from safetensors.torch import save_file

    tensors, metadata = extra_state(weights), {"step": str(step)}
    if tensors is not None:
        within, values = tensors
        metadata[_EXTRA] = json.dumps(values)
        weights = {name: one for name, one in weights.items() if isinstance(one, Tensor)}
        weights |= {name: one.detach().cpu().contiguous().clone() for name, one in within.items()}
    save_file(dict(weights), str(path), metadata=metadata)


def extra_state(weights: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any] | None:
    """Return the values of a state dict that are not tensors, flattened; None if there are none.

    Raises:
        TypeError: one of them cannot be saved.
    """
    extra = {name: value for name, value in weights.items() if not isinstance(value, Tensor)}
    return flatten({_EXTRA: extra}) if extra else None


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A tensor in a file of weights, which `read` reads."""

    path: Path
    name: str
    shape: Size

    def read(self) -> Tensor:
        """Return the tensor."""
        from safetensors import safe_open

        with safe_open(self.path, "pt") as file:
            found: Tensor = file.get_tensor(self.name)
        return found


def list_weights(path: Path) -> dict[str, Any]:
    """Return the state dict in a file, its tensors not yet read; nothing in it can run code."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        found = {
            name: StoredWeight(path, name, Size(file.get_slice(name).get_shape()))
            for name in file.keys()  # noqa: SIM118
        }
        text = (file.metadata() or {}).get(_EXTRA)
    if text is None:
        return dict(found)
    values = json.loads(text)
    within = tensor_nodes(values)
    extra = unflatten({name: found[name].read() for name in within}, values)[_EXTRA]
    return {name: one for name, one in found.items() if name not in within} | dict(extra)
