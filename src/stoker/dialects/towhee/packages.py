"""Packages that only some functions need: which are installed, and their modules by name."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

_MODULES = {"PILImage": "PIL.Image", "matplotlib": "matplotlib", "plt": "matplotlib.pyplot"}


def is_captum_available() -> bool:
    """Return whether captum is installed."""
    return find_spec("captum") is not None


def is_matplotlib_available() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def is_tensorboard_available() -> bool:
    """Return whether TensorBoard is installed."""
    return find_spec("tensorboard") is not None or find_spec("tensorboardX") is not None


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(_MODULES[name])
