"""The `LayerFreezer` of Stoker."""

from stoker.nn import LayerFreezer

__all__ = ["LayerFreezer"]
