"""Helpers around models: which layers learn, and how fast."""

from stoker.nn import lr
from stoker.nn.freeze import LayerFreezer

__all__ = ["LayerFreezer", "lr"]
