"""Weights as files that are whole or absent."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stoker.checkpoint.format.names import MANIFEST
from stoker.checkpoint.format.tensor_file import DTYPES
from stoker.config.yaml_text import ConfigError
from stoker.storage import atomic_file


def check_output(path: Path, suffixes: tuple[str, ...]) -> None:
    """Refuse a file that cannot be written, before any work is done for it."""
    if path.suffix not in suffixes:
        raise ConfigError(f"weights are written to {' or '.join(suffixes)}, got '{path}'")
    if path.is_dir():
        raise ConfigError(f"'{path}' is a folder, expected a file to write")
    if (path.parent / MANIFEST).exists():
        raise ConfigError(f"'{path}' would change the checkpoint in '{path.parent}'")


def write_aside(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` make the file at a temporary path, and move it into its place."""
    try:
        with atomic_file(path) as temporary:
            write(temporary)
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be written: {error.strerror or error}") from error


def save_safetensors(path: Path, weights: Mapping[str, Any]) -> None:
    """Write weights as safetensors, every name with its own numbers, tied ones too."""
    from safetensors.torch import save_file

    for name, value in weights.items():
        if (fault := _fault(value)) is not None:
            raise ConfigError(f"'{name}' is {fault}, which .safetensors cannot hold: use .pt")
    seen: set[int] = set()
    plain: dict[str, Tensor] = {}
    for name, value in weights.items():
        one = value.detach().contiguous()
        plain[name] = one.clone() if _place(one) in seen else one
        seen.add(_place(one))
    write_aside(path, lambda aside: save_file(plain, aside, metadata={"format": "pt"}))


def save_pt(path: Path, weights: Mapping[str, Any]) -> None:
    """Write a plain state dict with torch.save; ``weights_only=True`` loads it."""
    write_aside(path, lambda aside: torch.save(dict(weights), aside))


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.numel() else id(tensor)


def _fault(value: Any) -> str | None:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__} and no tensor"
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        return "no plain dense tensor"
    return None if value.dtype in DTYPES else f"a tensor of {value.dtype}"
