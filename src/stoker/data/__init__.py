"""How batches reach the loop, and where in them a run is."""

from stoker.data.dataloader import length_of
from stoker.data.feeder import BatchFeeder
from stoker.data.in_memory import by_sample, loader
from stoker.data.seeded import SeededDataset
from stoker.data.sharding.shard import DataShard, unshared

__all__ = [
    "BatchFeeder",
    "DataShard",
    "SeededDataset",
    "by_sample",
    "length_of",
    "loader",
    "unshared",
]
