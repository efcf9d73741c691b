"""The trainer of Towhee: replace ``towhee`` by ``stoker.dialects.towhee`` in a script."""

from stoker.dialects.towhee import ops

__all__ = ["ops"]
