"""`ShardPlan`: which samples of a pass each rank reads."""

from dataclasses import dataclass

from stoker.data.sharding.shard import DataShard


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Assigns the samples of a pass to ranks round-robin, one batch per rank at a time.

        order     0 1 2 3 4 5 | 6 7 8 9 10 11 | 12
        rank 0    0   2   4   | 6   8   10    | 12
        rank 1      1   3   5 |   7   9    11 | (12)

    A rank for which nothing is left in the last batch gets its first sample as a padding batch, so
    that all ranks have the same number of batches.

    Args:
        shard: the shard of this rank.
        batch_size: the number of samples per batch and rank.
        drop_last: whether to drop a last batch that is not full on every rank.
        num_samples: the number of samples in the pass.
        consumed: the number of samples that were read before this plan,
        first_batch: in this number of batches.
    """

    shard: DataShard
    batch_size: int
    drop_last: bool
    num_samples: int
    consumed: int = 0
    first_batch: int = 0

    @property
    def num_batches(self) -> int:
        """The number of batches in the pass, including those before this plan."""
        size, rest = self.batch_size * self.shard.world_size, self.num_samples - self.consumed
        return self.first_batch + (rest // size if self.drop_last else -(-rest // size))

    def consumed_before(self, batch: int) -> int:
        """Return the number of samples that all ranks read before the batch with this index."""
        size = self.batch_size * self.shard.world_size
        return min(self.num_samples, self.consumed + (batch - self.first_batch) * size)

    def indices(self, batch: int) -> range:
        """Return the indices into the order that this rank reads in a batch."""
        begin, end = self.consumed_before(batch), self.consumed_before(batch + 1)
        rank = 0 if self.is_padding(batch) else self.shard.rank
        return range(begin + rank, end, self.shard.world_size)

    def is_padding(self, batch: int) -> bool:
        """Return whether nothing is left for this rank in a batch."""
        return self.consumed_before(batch) + self.shard.rank >= self.consumed_before(batch + 1)
