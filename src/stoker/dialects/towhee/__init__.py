"""Towhee's trainer on Stoker: replace ``towhee`` by ``stoker.dialects.towhee`` in a script."""

from stoker.dialects.towhee import ops

__all__ = ["ops"]
