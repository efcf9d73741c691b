"""Weights as one safetensors file; state of modules that is not a tensor goes into its metadata."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from stoker.checkpoint.format.state_tree import flatten, tensor_names, unflatten

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


def read_weights_file(path: Path) -> dict[str, Any]:
    """Return the state dict in a file; nothing in it can run code."""
    from safetensors import safe_open
    from safetensors.torch import load_file

    found: dict[str, Any] = load_file(path)
    with safe_open(path, "pt") as file:
        text = (file.metadata() or {}).get(_EXTRA)
    if text is None:
        return found
    values = json.loads(text)
    extra = unflatten(found, values)[_EXTRA]
    within = tensor_names(values)
    return {name: one for name, one in found.items() if name not in within} | dict(extra)
