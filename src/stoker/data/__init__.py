"""How batches reach the loop, and where in them a run is."""

from stoker.data.feed import Feed
from stoker.data.length import length_of
from stoker.data.seeded import SeededDataset
from stoker.data.share import Part, unshared

__all__ = ["Feed", "Part", "SeededDataset", "length_of", "unshared"]
