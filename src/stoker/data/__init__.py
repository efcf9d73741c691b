"""How batches reach the loop."""

from stoker.data.feed import Feed, length_of

__all__ = ["Feed", "length_of"]
