"""How batches reach the loop, and where in them a run is."""

from stoker.data.feed import Feed
from stoker.data.gather import by_sample, loader
from stoker.data.length import length_of
from stoker.data.seeded import SeededDataset
from stoker.data.share import Part, unshared

__all__ = ["Feed", "Part", "SeededDataset", "by_sample", "length_of", "loader", "unshared"]
