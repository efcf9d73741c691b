"""Which layers learn: Stoker's own `LayerFreezer`."""

from stoker.nn import LayerFreezer

__all__ = ["LayerFreezer"]
