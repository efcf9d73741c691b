"""`Cursor`: one pass of one process over a stream, and its position in it.

What comes out of a stream is numbered, whatever the number of processes. Number n belongs to
process n modulo their number, counted from where the cursor started. All processes advance
together, so one position holds for all of them, and another number of processes resumes from it.

If every position has a record, a process reads only the positions of its own outputs. After a
filter or packing, outputs are found by evaluating all records before them, so every process does
that.
"""

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from operator import length_hint
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from stoker.core.errors import DataError
from stoker.core.log import get_logger
from stoker.data.sharding import DataShard
from stoker.data.streams.order import Ints
from stoker.data.streams.readers import Functions, Step, function_error
from stoker.data.streams.sources import Dropped, OnError, Reader

OnChange: TypeAlias = Literal["refuse", "continue"]

_log = get_logger()

_CHUNK = 256
"""Records that are decoded at a time."""

_MOST_NAMED = 100
_MOST_LOGGED = 10
_REMEMBERED = 4096
"""Positions of a cursor that can be returned to."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How records of tokens become sequences of the same length."""

    length: int
    field: str | None = None
    end: int | None = None
    pad: int | None = None


@dataclass(frozen=True, slots=True)
class Batching:
    """How records become batches."""

    size: int
    drop_last: bool = False
    collate: Callable[[list[Any]], Any] = default_collate


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of records: packing, functions, batches, functions."""

    reader: Reader
    packing: Packing | None = None
    of_sequences: tuple[Step, ...] = ()
    batching: Batching | None = None
    of_batches: tuple[Step, ...] = ()
    seed: int = 0
    workers: int = 0
    on_error: OnError = "raise"
    on_change: OnChange = "refuse"

    @property
    def size(self) -> int:
        """The number of items of an output."""
        return self.batching.size if self.batching else 1

    @property
    def drops(self) -> bool:
        """Whether the number of outputs is only known when all records were read."""
        return self.reader.drops or self.packing is not None or bool(self.of_sequences)

    @property
    def outputs(self) -> int | None:
        """The number of outputs of a pass, None if it is not known."""
        if self.drops:
            return None
        full, rest = divmod(self.reader.length, self.size)
        keeps_rest = rest and not (self.batching and self.batching.drop_last)
        return full + (1 if keeps_rest else 0)


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A position in a pass, the same for all processes.

    Args:
        outputs: the number of outputs before it.
        record: the position of the first record that is not used up.
        offset: the number of tokens of that record that are in outputs before it.
        skipped: the number of corrupt records before it, also in earlier passes.
        named: where the first of them are, and what is wrong with them.
    """

    outputs: int = 0
    record: int = 0
    offset: int = 0
    skipped: int = 0
    named: tuple[str, ...] = ()


_Chunk: TypeAlias = tuple[Ints, list[Any]]
"""Positions, and the record of each, `Dropped` or a `DataError`."""


class _Item(NamedTuple):
    """A record or sequence, the position of records after it, and its number for random draws."""

    value: Any
    record: int
    offset: int
    number: int
    skipped: int


class Cursor:
    """Yields the outputs of one process from a position to the end of a pass.

    Args:
        plan: what becomes of records.
        epoch: the number of the pass.
        start: where to start.
        shard: the process.
        pads: whether to repeat an output, as padding, for processes for which none is left.
        on_end: called with the cursor when it has reached the end.
    """

    def __init__(
        self,
        plan: Plan,
        epoch: int,
        start: StreamPosition,
        shard: DataShard,
        *,
        pads: bool = False,
        on_end: "Callable[[Cursor], None]" = lambda cursor: None,
    ) -> None:
        self._on_end = on_end
        self.epoch, self.start = epoch, start
        self._handed_out = 0
        self._rest: Iterator[Any] = iter([])  # handed out, but not yielded yet
        self._plan, self._shard, self._pads = plan, shard, pads
        self._of_sequences = Functions(plan.of_sequences, plan.seed, salt=1)
        self._of_batches = Functions(_functions_of_batches(plan), plan.seed, salt=2)
        self._rounds: deque[tuple[StreamPosition, tuple[int, ...]]] = deque(maxlen=_REMEMBERED)
        self.skipped, self._skipped = start.skipped, list(start.named)

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._outputs())

    def _outputs(self) -> Iterator[Iterable[Any]]:
        """Yield what is chained: a record should not pass through a generator of ours."""
        if self._plan.drops:
            yield self._finished(self._after_reading())
        elif self._plan.batching is not None:
            yield self._finished(self._by_position())
        else:
            for _, values in self._evaluated():
                if DataError in set(map(type, values)):
                    yield self._finished(_before_error(values, 1))
                self._handed_out += len(values)
                self._rest = iter(values)
                yield self._rest
        self._on_end(self)

    @property
    def yielded(self) -> int:
        """The number of outputs that were yielded."""
        return self._handed_out - length_hint(self._rest)

    def _finished(self, outputs: Iterator[list[Any]]) -> Iterator[Any]:
        for values in outputs:
            found = values[0] if self._plan.batching is None else self._finish(values)
            self._handed_out += 1
            yield found

    @property
    def position(self) -> StreamPosition:
        """The position after what was yielded."""
        return self.at(self.yielded)[0]

    @property
    def end(self) -> StreamPosition:
        """The start of the pass that follows, which counts corrupt records on from this one."""
        return StreamPosition(skipped=self.skipped, named=tuple(self._skipped))

    def at(self, yielded: int) -> tuple[StreamPosition, tuple[int, ...]]:
        """Return the position after this many outputs of this cursor.

        Returns:
            The position, and the number of items in the last output of each process that has one.
        """
        plan, world_size = self._plan, self._shard.world_size
        if yielded == 0:
            return self.start, ()
        if plan.drops:
            back = self.yielded - yielded
            if back >= len(self._rounds):
                raise RuntimeError(f"the position {back} batches ago is no longer known")
            return self._rounds[-1 - back]
        assert plan.outputs is not None
        size, length = plan.size, plan.reader.length
        first = self.start.outputs + (yielded - 1) * world_size
        end = min(first + world_size, plan.outputs)
        sizes = tuple(min(size, length - n * size) for n in range(first, end))
        return StreamPosition(end, min(end * size, length)), sizes

    # Outputs

    def _by_position(self) -> Iterator[list[Any]]:
        """Yield the items of the outputs of this process, which reads no other ones."""
        size = self._plan.size
        rest: list[Any] = []
        for _, values in self._evaluated():
            if DataError in set(map(type, values)):
                yield from _before_error(rest + values, size)
            rest += values
            full = len(rest) // size * size
            for start in range(0, full, size):
                yield rest[start : start + size]
            rest = rest[full:]
        if rest:
            yield rest

    def _after_reading(self) -> Iterator[list[Any]]:
        """Yield the items of the outputs of this process, picked from those of all."""
        position, rank = self.start, self._shard.rank
        groups = self._groups()
        while found := list(islice(groups, self._shard.world_size)):
            last = found[-1][-1]
            position = StreamPosition(
                position.outputs + len(found),
                last.record,
                last.offset,
                last.skipped,
                tuple(self._skipped[: last.skipped]),
            )
            own = rank if rank < len(found) else 0
            if rank < len(found) or self._pads:
                self._rounds.append((position, tuple(map(len, found))))
                yield [item.value for item in found[own]]

    def _groups(self) -> Iterator[list[_Item]]:
        plan = self._plan
        items = self._kept(self._items() if plan.packing is None else self._packed(plan.packing))
        while group := list(islice(items, plan.size)):
            if len(group) == plan.size or not (plan.batching and plan.batching.drop_last):
                yield group

    def _finish(self, values: list[Any]) -> Any:
        """Collate the items of an output and apply the functions of batches."""
        if not self._of_batches.steps:
            return _collated(values)
        failed: list[Exception] = []
        position, sizes = self.at(self.yielded + 1)
        rank = self._shard.rank if self._shard.rank < len(sizes) else 0
        number = position.outputs - len(sizes) + rank
        found = self._of_batches.apply(
            lambda: [list(values)], [number], self.epoch, lambda _, error: failed.append(error)
        )
        if failed:
            raise failed[0]
        return found[0]

    def _kept(self, items: Iterator[_Item]) -> Iterator[_Item]:
        """Apply the functions of sequences."""
        if not self._plan.of_sequences:
            yield from items
            return
        for item in items:
            values, where = [item.value], f"the sequence before record {item.record}"
            found = self._of_sequences.apply(
                values.copy,
                [item.number],
                self.epoch,
                lambda _, error, where=where: function_error(where, error),  # type: ignore[misc]
            )[0]
            if isinstance(found, DataError):
                raise found
            if not isinstance(found, Dropped):
                yield item._replace(value=found)

    # Packing

    def _packed(self, packing: Packing) -> Iterator[_Item]:
        """Yield sequences of tokens; a record that does not fit continues in the next one."""
        pieces: list[Ints] = []
        missing, number, skip, skipped = packing.length, 0, self.start.offset, self.start.skipped
        item = None
        for item in self._items(partial(_tokens, packing)):
            tokens = item.value
            at, skip, skipped = skip, 0, item.skipped
            while len(tokens) - at >= missing:
                pieces.append(tokens[at : at + missing])
                at += missing
                done = at == len(tokens)
                record, offset = (item.record, 0) if done else (item.record - 1, at)
                sequence = torch.from_numpy(np.concatenate(pieces))
                number = item.record * packing.length + at
                yield _Item(sequence, record, offset, number, skipped)
                pieces, missing = [], packing.length
            if at < len(tokens):
                pieces.append(tokens[at:])
                missing -= len(tokens) - at
        if item is not None and pieces and packing.pad is not None:
            pieces.append(np.full(missing, packing.pad, np.int64))
            sequence = torch.from_numpy(np.concatenate(pieces))
            yield _Item(sequence, item.record, 0, item.record * packing.length, skipped)

    # Records

    def _items(self, convert: Callable[[Any], Any] | None = None) -> Iterator[_Item]:
        """Yield the records that this process reads, converted by a function."""
        skipped = self.start.skipped
        for positions, values in self._evaluated():
            for position, value in zip(positions.tolist(), values, strict=True):
                found = value if convert is None else self._converted(convert, value, position)
                if isinstance(found, Dropped):
                    if found.reason is not None:
                        skipped += 1
                        self._note(found.reason, skipped)
                elif isinstance(found, DataError):
                    raise found
                else:
                    yield _Item(found, position + 1, 0, position, skipped)

    def _converted(self, convert: Callable[[Any], Any], value: Any, position: int) -> Any:
        if isinstance(value, Dropped | DataError):
            return value
        try:
            return convert(value)
        except DataError as error:
            reason = f"the record at position {position} of the epoch {error}"
            return Dropped(reason) if self._plan.on_error == "skip" else DataError(reason)

    def _note(self, reason: str, skipped: int) -> None:
        self.skipped = skipped
        if len(self._skipped) < _MOST_NAMED:
            self._skipped.append(reason)
        if skipped <= _MOST_LOGGED:
            _log.warning(f"skipped {reason}")
        if skipped == _MOST_LOGGED:
            _log.warning("further corrupt records are counted, but not logged")

    def _evaluated(self) -> Iterator[_Chunk]:
        """Yield positions and what is there, read ahead by workers if there are any."""
        plan = self._plan
        task = _Task(plan.reader, self.epoch, self._selection())
        spans = self._spans()
        if plan.workers == 0:
            for span in spans:
                yield from task.lazily(span)
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # more workers than processors
            loader = DataLoader(
                task,
                batch_size=None,
                sampler=list(spans),
                num_workers=plan.workers,
                collate_fn=_identity,
                generator=torch.Generator(),  # the global one stays as it is
            )
            tasks = iter(loader)
        for found in tasks:
            yield from found

    def _spans(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of positions that are best read together."""
        reader, at = self._plan.reader, self.start.record
        while at < reader.length:
            _, stop = reader.span(self.epoch, at)
            yield at, stop
            at = stop

    def _selection(self) -> "_Selection | None":
        """Return which positions this process reads, None for all."""
        plan, shard = self._plan, self._shard
        if plan.drops or plan.outputs is None:
            return None
        start, total = self.start.outputs, plan.outputs
        last = start + (total - 1 - start) // shard.world_size * shard.world_size
        padding = last if self._pads and last + shard.rank >= total else None
        return _Selection(plan.size, start, total, shard, padding)


class _Selection(NamedTuple):
    """The positions of the outputs of one process."""

    size: int
    start: int
    total: int
    shard: DataShard
    padding: int | None

    def of(self, positions: Ints) -> Ints:
        number = positions // self.size
        own = (number - self.start) % self.shard.world_size == self.shard.rank
        if self.padding is not None:
            own |= number == self.padding
        found: Ints = positions[own & (number < self.total)]
        return found


class _Task(Dataset[Any]):
    """Reads and evaluates a span, in a worker or in the process itself."""

    def __init__(self, reader: Reader, epoch: int, selection: _Selection | None) -> None:
        self._reader, self._epoch, self._selection = reader, epoch, selection

    def __getitem__(self, span: tuple[int, int]) -> list[_Chunk]:
        return list(self.lazily(span))

    def lazily(self, span: tuple[int, int]) -> Iterator[_Chunk]:
        positions = np.arange(*span)
        if self._selection is not None:
            positions = self._selection.of(positions)
        if not len(positions):
            return
        outcomes = self._reader.read(self._epoch, positions)
        for start in range(0, len(positions), _CHUNK):
            chunk = positions[start : start + _CHUNK]
            yield chunk, outcomes.get(start, start + len(chunk))


def _identity(value: Any) -> Any:
    return value


def _before_error(values: list[Any], size: int) -> Iterator[list[Any]]:
    """Yield the complete outputs before the first error, then raise it."""
    end = next(i for i, value in enumerate(values) if isinstance(value, DataError))
    for start in range(0, end // size * size, size):
        yield values[start : start + size]
    raise values[end]


def _functions_of_batches(plan: Plan) -> Sequence[Step]:
    """Return the function that collates, and those that follow; none if torch collates."""
    if plan.batching is None or (plan.batching.collate is default_collate and not plan.of_batches):
        return ()
    return (Step("map", plan.batching.collate), *plan.of_batches)


def _collated(values: list[Any]) -> Any:
    try:
        return default_collate(values)
    except Exception as error:  # whatever torch raises for records that do not fit together
        raise DataError(
            f"the records of a batch cannot be combined: {type(error).__name__}: {error}; give "
            "them the same shape with map(), or pass collate= to batch()"
        ) from error


def _tokens(packing: Packing, value: Any) -> Ints:
    """Return the tokens of a record, with the one that ends it."""
    if packing.field is not None:
        try:
            value = value[packing.field]
        except (KeyError, IndexError, TypeError):
            names = ", ".join(map(repr, value)) if isinstance(value, Mapping) else ""
            has = f"has the fields {names}" if names else f"is a {type(value).__name__}"
            raise DataError(f"{has}, and pack() needs {packing.field!r}") from None
    try:
        tokens = np.asarray(value)
    except ValueError:  # lists of different lengths in a list
        tokens = np.zeros((0, 0))
    is_kind = tokens.dtype.kind in "iu" or not tokens.size
    is_large = tokens.dtype == np.uint64 and tokens.max(initial=0) > np.iinfo(np.int64).max
    if tokens.ndim != 1 or not is_kind or is_large:
        raise DataError(
            f"holds {_kind(value)} for pack(), expected a list or a one-dimensional array of token "
            "ids: use map() before it, or pass field="
        )
    ids: Ints = tokens.astype(np.int64)
    return ids if packing.end is None else np.append(ids, np.int64(packing.end))


def _kind(value: Any) -> str:
    """Return what a value is, with the kind of its items."""
    name = f"a {type(value).__name__}"
    if isinstance(value, list | tuple) and value:
        return f"{name} of {', '.join(sorted({type(item).__name__ for item in value}))}"
    return f"{name} of {value.dtype}" if hasattr(value, "dtype") else name
