"""Write weights files atomically."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stoker.checkpoint.format.names import MANIFEST
from stoker.checkpoint.format.tensor_file import DTYPES
from stoker.cli.common import output_path
from stoker.core.errors import ConfigError
from stoker.storage import atomic_file


def checked_output(text: str, suffixes: tuple[str, ...]) -> Path:
    """Return the output path; reject one that cannot be written, before any work is done."""
    path = output_path(text, "--output", suffixes)
    if (path.parent / MANIFEST).exists():
        raise ConfigError(f"'{path}' would modify the checkpoint '{path.parent}'")
    return path


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` create the file at a temporary path, then move it to ``path``."""
    try:
        with atomic_file(path) as temporary:
            write(temporary)
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be written: {error.strerror or error}") from error


def save_safetensors(path: Path, weights: Mapping[str, Any]) -> None:
    """Write weights as safetensors; tied weights are stored under each of their names."""
    from safetensors.torch import save_file

    for name, value in weights.items():
        if (fault := _fault(value)) is not None:
            raise ConfigError(f"'{name}' is {fault}, which .safetensors cannot store: use .pt")
    seen: set[int] = set()
    plain: dict[str, Tensor] = {}
    for name, value in weights.items():
        one = value.detach().contiguous()
        plain[name] = one.clone() if _place(one) in seen else one
        seen.add(_place(one))
    write_atomically(path, lambda to: save_file(plain, to, metadata={"format": "pt"}))


def save_pt(path: Path, weights: Mapping[str, Any]) -> None:
    """Write a plain state dict with torch.save; ``weights_only=True`` loads it."""
    write_atomically(path, lambda to: torch.save(dict(weights), to))


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.numel() else id(tensor)


def _fault(value: Any) -> str | None:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}, not a tensor"
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        return "not a plain dense tensor"
    return None if value.dtype in DTYPES else f"a tensor of {value.dtype}"
