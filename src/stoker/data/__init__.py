"""Feeding batches to the loop: windows, shards, streams, and the position in the data."""

from stoker.core.calls import explain_calls
from stoker.data.dataloader import length_of
from stoker.data.feeder import BatchFeeder
from stoker.data.in_memory import by_sample, loader
from stoker.data.permutation import PermutationSampler
from stoker.data.planning import find_batch_size, total_steps
from stoker.data.seeded import SeededDataset
from stoker.data.sharding import DataShard, unsharded
from stoker.data.streams.pipeline import pipeline
from stoker.data.streams.stream import Stream, mix, stream

__all__ = [
    "BatchFeeder",
    "DataShard",
    "PermutationSampler",
    "SeededDataset",
    "Stream",
    "by_sample",
    "find_batch_size",
    "length_of",
    "loader",
    "mix",
    "pipeline",
    "stream",
    "total_steps",
    "unsharded",
]

explain_calls(globals(), __all__)
