"""`StreamStrategy`: read a `Stream`, and resume it at any position."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import default_collate

from stoker.core import dist
from stoker.core.types import Batch
from stoker.data.resume.position import ResumePoint
from stoker.data.resume.rng import RngSnapshot
from stoker.data.resume.strategies import ResumeStrategy
from stoker.data.sharding import DataShard
from stoker.data.streams.cursor import Cursor, Plan, StreamPosition
from stoker.data.streams.state import check_data, data_state, position_from, position_state
from stoker.data.streams.stream import Stream


class StreamStrategy(ResumeStrategy):
    """Reads this rank's batches of a stream.

    The position is the same on all ranks, so a pass resumes with any number of them. A stream
    draws no random numbers from the global generators.

    Args:
        loader: the stream; its own position is not used.
        name: the name of the loader in messages.
        shard: the shard to read.
    """

    kind = "stream"

    def __init__(self, loader: Stream, name: str, shard: DataShard) -> None:
        super().__init__(loader, name)
        if loader.plan.batching is None:
            raise ValueError(f"{name} yields single records: call batch(size) on the stream")
        self._plan, self._shard, self._first = loader.plan, shard, 0
        self._set_cursor(0, StreamPosition(), 0)

    def snapshot(self) -> RngSnapshot:
        """Capture nothing: the order is a function of the position."""
        return RngSnapshot()

    def start(self, epoch: int | None) -> Iterable[Batch]:
        """Return this rank's batches of an epoch; without a number, of the first one."""
        self._set_cursor(epoch or 0, StreamPosition(), 0)
        return self._cursor

    def resume(self, point: ResumePoint) -> Iterator[Batch]:
        """Return this rank's remaining batches."""
        return iter(self._cursor)

    def state(self, batches: int | None) -> dict[str, Any]:
        """Return the position of all ranks, and what the data is."""
        state = data_state(self._plan)
        if batches is not None:
            position = self._cursor.at(batches - self._first)[0]
            state |= position_state(self._plan, self._cursor.epoch, position)
        return state

    def load(self, state: Mapping[str, Any], point: ResumePoint | None) -> None:
        """Restore a pass that any number of ranks has saved."""
        self._set_cursor(0, StreamPosition(), 0)
        if state["loader"]["kind"] != self.kind:
            return
        saved = state["loader_state"]
        check_data(self._plan, saved)
        if point is not None:
            start = position_from(self._plan, saved)
            self._set_cursor(int(saved["epoch"]), start, point.batches)

    def padding(self, batches: int) -> int:
        """Return 1 if the last of the first ``batches`` is padding, otherwise 0."""
        sizes = self._cursor.at(batches - self._first)[1]
        return int(bool(sizes) and self._shard.rank >= len(sizes))

    def global_size(self, batches: int, sizes: Sequence[int]) -> int:
        """Return the samples of all ranks in a window.

        Where a function of the user makes the batches, their sizes are summed over all ranks.
        """
        rounds = range(batches - len(sizes) + 1, batches + 1)
        planned = [self._cursor.at(number - self._first)[1] for number in rounds]
        rank = self._shard.rank
        if self._plan.of_batches or not _is_torch_collate(self._plan):
            real = sum(size for size, one in zip(sizes, planned, strict=True) if rank < len(one))
            readers_per_shard = max(1, dist.world_size() // self._shard.world_size)
            return int(dist.all_reduce_sum(real)[0]) // readers_per_shard
        return sum(map(sum, planned))

    def _set_cursor(self, epoch: int, start: StreamPosition, first: int) -> None:
        """Set where the next pass starts, after ``first`` batches of this rank."""
        self._first = first
        self._cursor = Cursor(self._plan, epoch, start, self._shard, pads=True)
        total, world_size = self._plan.outputs, self._shard.world_size
        self.length = None if total is None else first + -(-(total - start.outputs) // world_size)


def _is_torch_collate(plan: Plan) -> bool:
    return plan.batching is not None and plan.batching.collate is default_collate
