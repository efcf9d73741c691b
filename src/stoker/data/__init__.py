"""How batches reach the loop, and where in them a run is."""

from stoker.data.feed import Feed, length_of
from stoker.data.seeded import SeededDataset

__all__ = ["Feed", "SeededDataset", "length_of"]
