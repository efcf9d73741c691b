"""`Stream`: records from files in a shuffled order that any position can be resumed from."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch.utils.data import IterableDataset, default_collate, get_worker_info

from stoker.core.errors import check_number
from stoker.core.object_search import search
from stoker.data.dataloader import has_shuffle_buffer
from stoker.data.resume.unsaved import changing_values
from stoker.data.sharding import DataShard
from stoker.data.streams.cursor import Batching, Cursor, OnChange, Packing, Plan, StreamPosition
from stoker.data.streams.iterable import IterableReader, IterableSource
from stoker.data.streams.order import WINDOW_RECORDS
from stoker.data.streams.progress import indexing_bar
from stoker.data.streams.readers import AppliedReader, Functions, MixedReader, Step
from stoker.data.streams.sources import (
    HuggingFaceSource,
    OnError,
    Reader,
    SourceReader,
    open_files,
)
from stoker.data.streams.state import (
    check_complete,
    check_data,
    data_state,
    position_from,
    position_state,
)


class Stream(IterableDataset[Any]):
    """Records in an order that depends only on the seed, the epoch and the position.

    Make one with `stoker.data.stream`; each method returns a new stream. Pass it to
    ``Trainer.fit``, which shards it between processes and resumes it, or iterate over it:

        batches = data.stream("corpus/*.jsonl", shuffle=True).map(tokenize).batch(32)
        batches.load_state_dict(saved)      # to resume; any number of processes
        while batches.epoch < 3:
            for batch in batches:           # the rest of the epoch
                ...
                saved = batches.state_dict()

    The order does not depend on the number of workers or processes.

    Attributes:
        epoch: the epoch of the next pass, or of the one in progress.
    """

    shards_itself = True

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._shard = DataShard()
        self.epoch = 0
        self._start = StreamPosition()
        self._cursor: Cursor | None = None

    # Steps

    def map(self, function: Callable[[Any], Any]) -> "Stream":
        """Apply a function to each record; after `batch`, to each batch.

        Random numbers that it draws from the global generators of Python, NumPy and torch depend
        only on the seed, the epoch and the position.
        """
        return self._with_step(Step("map", function))

    def filter(self, function: Callable[[Any], Any]) -> "Stream":
        """Keep the records for which a function returns something true."""
        return self._with_step(Step("filter", function))

    def pack(
        self,
        length: int,
        *,
        field: str | None = None,
        end: int | None = None,
        pad: int | None = None,
    ) -> "Stream":
        """Join records of token ids and cut them into sequences of the same length.

        Args:
            length: the number of tokens of a sequence.
            field: the field of a record that holds the tokens, None if the record itself does.
            end: a token to add after each record.
            pad: the token that fills the last sequence of an epoch; without it, the tokens that do
                not fill a sequence are left out.
        """
        _check_size("length", length)
        self._check_before("pack")
        if self._plan.packing is not None:
            raise ValueError("pack() was called twice: a stream is packed once")
        return self._with_plan(packing=Packing(length, field, end, pad))

    def batch(
        self,
        size: int,
        *,
        drop_last: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> "Stream":
        """Combine records into batches.

        Args:
            size: the number of records per batch and process.
            drop_last: whether to leave out a last batch that is not full.
            collate: the function that makes a batch of a list of records; None collates as a
                `DataLoader` does.
        """
        _check_size("size", size)
        self._check_before("batch")
        if collate is not None:
            _check_function("batch", collate)
        return self._with_plan(batching=Batching(size, drop_last, collate or default_collate))

    def _check_before(self, step: str) -> None:
        if self._plan.batching is not None:
            raise ValueError(f"{step}() comes before batch(), and a stream is batched once")

    def _with_step(self, step: Step) -> "Stream":
        _check_function(*step)
        plan = self._plan
        if plan.batching is not None:
            if step.kind == "filter":
                raise ValueError("filter() comes before batch(): it selects records")
            return self._with_plan(of_batches=(*plan.of_batches, step))
        if plan.packing is not None:
            return self._with_plan(of_sequences=(*plan.of_sequences, step))
        reader: Reader = plan.reader
        steps: tuple[Step, ...] = (step,)
        if isinstance(plan.reader, AppliedReader):
            reader, steps = plan.reader.reader, (*plan.reader.functions.steps, step)
        functions = Functions(steps, plan.seed, salt=0)
        return self._with_plan(reader=AppliedReader(reader, functions, plan.on_error == "skip"))

    def _with_plan(self, **changes: Any) -> "Stream":
        return Stream(replace(self._plan, **changes))

    # Position

    def shard(self, rank: int, world_size: int) -> "Stream":
        """Return the part of one process; batch n belongs to rank n modulo ``world_size``."""
        sharded = copy(self)
        sharded.set_shard(rank, world_size)
        return sharded

    def set_shard(self, rank: int, world_size: int) -> None:
        """Read the part of one process from now on."""
        self._start, self._shard = self._position, DataShard(rank, world_size)
        self._cursor = None

    def set_epoch(self, epoch: int) -> None:
        """Read this epoch next: from its start, unless it is the one in progress."""
        if epoch != self.epoch:
            self.epoch, self._start, self._cursor = epoch, StreamPosition(), None

    @property
    def skipped(self) -> int:
        """The number of corrupt records that were skipped so far, in all epochs."""
        return self._position.skipped

    @property
    def _position(self) -> StreamPosition:
        return self._start if self._cursor is None else self._cursor.position

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the same on all processes, and what the data was."""
        position = position_state(self._plan, self.epoch, self._position)
        return {**position, **data_state(self._plan)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at a position, with any number of workers and processes.

        Raises:
            DataError: the data has changed, and the stream was not made with
                ``on_change="continue"``.
        """
        check_complete(state)
        check_data(self._plan, state)
        self.epoch, self._cursor = int(state["epoch"]), None
        self._start = position_from(self._plan, state)

    def __iter__(self) -> Iterator[Any]:
        """Yield the rest of the epoch, then begin the next one."""
        if get_worker_info() is not None:
            raise RuntimeError(
                "a stream cannot be read by the workers of a DataLoader: pass workers= to "
                "stoker.data.stream, and use the stream itself instead of a DataLoader"
            )
        self._cursor = Cursor(
            self._plan, self.epoch, self._position, self._shard, on_end=self._begin_next_epoch
        )
        return iter(self._cursor)

    def _begin_next_epoch(self, cursor: Cursor) -> None:
        if self._cursor is cursor:
            self.epoch, self._start, self._cursor = self.epoch + 1, cursor.end, None

    def __len__(self) -> int:
        """Return the number of batches of this process in an epoch, if it is known."""
        total = self._plan.outputs
        if total is None:
            raise TypeError(
                "the length of a stream with filter(), pack() or on_error='skip' is only known "
                "after it was read"
            )
        return len(range(self._shard.rank, total, self._shard.world_size))

    @property
    def plan(self) -> Plan:
        """What becomes of records, for feeders and reports."""
        return self._plan


def stream(
    source: Any,
    *,
    shuffle: bool | int = False,
    seed: int = 0,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    workers: int = 0,
    on_error: OnError = "raise",
    on_change: OnChange = "refuse",
    cache: str | Path | None = None,
) -> Stream:
    """Return a `Stream` of the records of files, or of a Hugging Face dataset.

        data.stream("corpus/*.jsonl", shuffle=True, seed=1).map(tokenize).pack(2048).batch(8)

    Files are indexed once; the index is cached in ``.stoker-index`` next to them.

    Args:
        source: a file, a folder, a pattern, a list of these, or a dataset of Hugging Face.
        shuffle: whether to shuffle: blocks of records, then records within a window of 8192, or
            of as many as given.
        seed: the seed of the order, and of random numbers that functions draw.
        format: "jsonl", "text", "parquet" or "webdataset"; by default, what the suffixes mean.
        columns: the columns of Parquet files to read.
        workers: processes that read ahead and apply functions to records.
        on_error: what to do with a corrupt record: "raise" an error that names it, or "skip" it.
        on_change: what to do if the data has changed when a state is loaded: "refuse" or
            "continue".
        cache: the folder for indexes, instead of one next to the data.
    """
    _check_choice("on_error", on_error, ("raise", "skip"))
    _check_choice("on_change", on_change, ("refuse", "continue"))
    check_number("seed", seed, integer=True)
    if type(workers) is not int or workers < 0:
        raise ValueError(f"workers must be an integer from 0, got {workers!r}")
    window = WINDOW_RECORDS if shuffle is True else int(shuffle)
    if window < 0 or (window == 1 and shuffle is not True):
        raise ValueError(f"shuffle must be True, False or a number from 2, got {shuffle!r}")
    reader: Reader
    if type(source).__module__.partition(".")[0] == "datasets":
        for name, value in (("format", format), ("columns", columns), ("cache", cache)):
            if value is not None:
                raise ValueError(f"{name} is for files, but the source is a Hugging Face dataset")
        reader = _dataset_reader(source, window, seed, workers, on_error)
    else:
        with indexing_bar() as progress:
            place = Path(cache) if cache is not None else None
            found = open_files(source, format, columns, place, on_error, progress)
        reader = SourceReader(found, window, seed, on_error)
    return Stream(Plan(reader, seed=seed, workers=workers, on_error=on_error, on_change=on_change))


def mix(
    streams: Sequence[Stream],
    weights: Sequence[float],
    *,
    seed: int = 0,
    until: int | Literal["first", "all"] = "first",
) -> Stream:
    """Return a stream with the records of several streams in fixed proportions.

        data.mix([code, prose], [0.3, 0.7], seed=1).map(tokenize).pack(2048).batch(8)

    Each stream has epochs of its own, one after another, so none of its records comes again before
    all others have come. Weights count records as they are read, before filters.

    Args:
        streams: streams that are not packed or batched.
        weights: a positive number for each stream; they need not sum to one.
        seed: the seed of the order in which the streams take turns.
        until: the length of an epoch: until the "first" of the streams has finished an epoch of
            its own, until "all" have, or a number of records.
    """
    if not (until in ("first", "all") or (type(until) is int and until > 0)):
        raise ValueError(f"until must be 'first', 'all' or a number of records, got {until!r}")
    if len(streams) != len(weights) or not streams:
        raise ValueError(f"mix() got {len(streams)} streams and {len(weights)} weights")
    for weight in weights:
        check_number("weights", weight)
        if not 0 < weight < float("inf"):
            raise ValueError(f"weights must be positive, got {weight!r}")
    plans = [one.plan for one in streams]
    if any(plan.packing is not None or plan.batching is not None for plan in plans):
        raise ValueError("mix() comes before pack() and batch(): mix streams of records")
    readers: list[Reader] = [plan.reader for plan in plans]
    if any(isinstance(source, IterableSource) for one in readers for source in one.sources):
        raise ValueError("mix() needs random access: a datasets.IterableDataset has none")
    reader = MixedReader(readers, weights, seed, until)
    workers = max(plan.workers for plan in plans)
    on_error: OnError = "skip" if any(plan.on_error == "skip" for plan in plans) else "raise"
    continues = any(plan.on_change == "continue" for plan in plans)
    on_change: OnChange = "continue" if continues else "refuse"
    return Stream(Plan(reader, seed=seed, workers=workers, on_error=on_error, on_change=on_change))


def _dataset_reader(
    dataset: Any, window: int, seed: int, workers: int, on_error: OnError
) -> Reader:
    if hasattr(dataset, "__getitems__") and hasattr(dataset, "_fingerprint"):
        if not len(dataset):
            raise ValueError("the dataset has no rows, expected at least one")
        if dataset.format["type"] == "arrow":
            raise ValueError("the rows of the dataset are Arrow tables: use with_format(None)")
        return SourceReader(HuggingFaceSource(dataset), window, seed, on_error)
    if not hasattr(dataset, "_ex_iterable"):
        hint = ": pass one of its splits" if isinstance(dataset, Mapping) else ""
        raise TypeError(
            f"the source is a {type(dataset).__name__}, expected a datasets.Dataset or "
            f"IterableDataset{hint}"
        )
    if has_shuffle_buffer(dataset):
        raise ValueError(
            "the dataset shuffles in a buffer that its state leaves out: remove its shuffle(), and "
            "pass shuffle= to stoker.data.stream"
        )
    if workers:
        raise ValueError(
            "workers cannot share a datasets.IterableDataset, which has no random access: use "
            "workers=0, or stream its files"
        )
    return IterableReader(IterableSource(dataset), window, seed)


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")


def _check_size(name: str, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} must be an integer from 1, got {value!r}")


def _check_function(name: str, function: Any) -> None:
    """Reject what is no function, or one whose results depend on how often it was called."""
    if not callable(function):
        raise TypeError(f"{name}() got a {type(function).__name__}, expected a function")
    for what in changing_values(search([("function", function)])):
        raise ValueError(
            f"the function of {name}() changes {what} when it is called, so its results depend on "
            "how far was read ahead: draw from the global generators (random, np.random, torch), "
            "which are seeded for each record, and keep no counters"
        )
