"""Vision transformers by name."""

from typing import Any

from stoker.core.errors import did_you_mean
from stoker.nn import ViT

_SIZES: dict[str, dict[str, int]] = {
    "vit_tiny_16x224": {"width": 192, "layers": 12, "heads": 3},
    "vit_small_16x224": {"width": 384, "layers": 12, "heads": 6},
    "vit_base_16x224": {"width": 768, "layers": 12, "heads": 12},
}


def create_model(model_name: str = "vit_tiny_16x224", **options: Any) -> ViT:
    """Return an untrained `stoker.nn.ViT`; options are its arguments, such as ``classes=10``."""
    if model_name not in _SIZES:
        near = did_you_mean(model_name, _SIZES)
        raise ValueError(f"there is no model {model_name!r}{near} (there is {', '.join(_SIZES)})")
    return ViT(**{**_SIZES[model_name], **options})
