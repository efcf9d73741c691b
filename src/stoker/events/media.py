"""Log images and texts: ``media.jsonl`` in the run folder, with image files in ``media/``."""

import json
import re
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from stoker.core import dist
from stoker.events.writers.jsonl import append_line
from stoker.rundir import files
from stoker.storage import write_atomic

_COLOR_TYPES = {1: 0, 3: 2, 4: 6}
"""The PNG color type by number of channels."""


def log_image(folder: Path | None, name: str, pixels: Tensor | NDArray[Any], step: int) -> None:
    """Save an image to the run folder; the board shows it.

    >>> log_image(run.dir, "val/worst", batch[0], run.step)    # doctest: +SKIP

    Args:
        folder: The run folder, ``run.dir``. None saves nothing.
        name: The name of the image. It replaces an image of the same name and step, so that a
            step repeated after a kill leaves only one.
        pixels: Height × width, or with 1, 3 or 4 channels first or last; bytes, or floats from
            0 to 1.
        step: The current step.
    """
    if folder is None or not dist.is_main():
        return
    png = _png(_as_bytes(pixels))
    slug = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:100]
    if slug != name:
        slug += f"-{xxhash.xxh32_hexdigest(name.encode())}"
    path = folder / files.MEDIA / f"{slug}-{step:08d}.png"
    write_atomic(path, png, durable=False)  # a sync would delay the training step
    _append(folder, {"step": step, "name": name, "kind": "image", "file": path.name})


def log_text(folder: Path | None, name: str, text: str, step: int) -> None:
    """Save a text to the run folder, such as a sample of generated text.

    Args:
        folder: The run folder, ``run.dir``. None saves nothing.
        name: The name of the text. It replaces a text of the same name and step.
        text: The text.
        step: The current step.
    """
    if folder is not None and dist.is_main():
        _append(folder, {"step": step, "name": name, "kind": "text", "text": text})


def _append(folder: Path, row: dict[str, Any]) -> None:
    append_line(folder / files.MEDIA_INDEX, json.dumps(row | {"time": round(time.time(), 3)}))


def _as_bytes(pixels: Tensor | NDArray[Any]) -> NDArray[np.uint8]:
    """Return the image as bytes of shape height × width × channels."""
    array = pixels.detach().cpu().float().numpy() if isinstance(pixels, Tensor) else pixels
    is_bytes = pixels.dtype.itemsize == 1
    array = array[..., None] if array.ndim == 2 else array
    if array.ndim == 3 and array.shape[0] in _COLOR_TYPES and array.shape[2] not in _COLOR_TYPES:
        array = np.moveaxis(array, 0, -1)
    if array.ndim != 3 or array.shape[2] not in _COLOR_TYPES or not array.size:
        raise ValueError(
            f"the image has shape {tuple(pixels.shape)}, expected height × width, optionally with "
            "1, 3 or 4 channels"
        )
    scaled = array if is_bytes else np.nan_to_num(array) * 255
    return np.ascontiguousarray(np.clip(np.round(scaled), 0, 255).astype(np.uint8))


def _png(image: NDArray[np.uint8]) -> bytes:
    height, width, channels = image.shape
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    lines = np.concatenate(
        [np.zeros((height, 1), np.uint8), image.reshape(height, width * channels)], axis=1
    )
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
