"""The pictures of the board in the documentation, and where each comes from."""

import io
import os
import shutil
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"

_THREE = ("lr x4", "lr x2", "baseline")

PICTURES = {
    "board-charts.png": ("charts", _THREE, {}),
    "board-dark.png": ("charts", _THREE, {"smooth": "0.6", "log": ""}),
    "board-table.png": ("table", _THREE, {}),
    "board-compare.png": ("compare", _THREE, {}),
    "board-timeline.png": ("run", ("spot instance",), {}),
    "board-phone.png": ("charts", ("spot instance",), {}),
}
"""File in ``docs/images`` → the tab, the selected runs and the rest of the address."""


def save_picture(png: bytes, path: Path) -> None:
    """Save a picture with few colours; ``STOKER_PICTURES=1`` copies it to ``docs/images``."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)
    if os.environ.get("STOKER_PICTURES"):
        shutil.copy(path, DOCS / "images" / path.name)
