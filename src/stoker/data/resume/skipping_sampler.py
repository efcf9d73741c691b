"""`SkippingSampler`: an index sampler that starts after the batches already consumed."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, repeat
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

_JUMPING: tuple[type, ...] = (type(iter([])), type(iter(())), type(iter(range(0))))
"""Iterators that move to any place at once."""


class SkippingSampler:
    """What ``sampler`` gives after its first ``count`` items.

    The random draws are those torch makes, in the same order and as late as it makes them. For the
    samplers of torch the skipped indices are never touched one by one; any other sampler is
    iterated.

    Args:
        sampler: the index sampler of a loader.
        count: items of it to skip: batches of indices, or indices where nothing is batched.
        prepare: called first whenever an iterator is asked for.
        arrived: called once the items are skipped, before anything else is drawn.
    """

    def __init__(
        self,
        sampler: Any,
        count: int,
        *,
        prepare: Callable[[], None],
        arrived: Callable[[], None],
    ) -> None:
        self._sampler = sampler
        self._count = count
        self._prepare = prepare
        self._arrived = arrived

    def __iter__(self) -> Iterator[Any]:
        """An iterator over the rest; like the real one it draws when it is first asked."""
        self._prepare()
        sampler, count = self._sampler, self._count
        if is_plain(sampler, BatchSampler):
            rest = self._rest(sampler.sampler, count * sampler.batch_size)
            return iter(BatchSampler(rest, sampler.batch_size, sampler.drop_last))
        if _chunks(sampler) is not None:
            return self._rest(sampler, count)
        return self._beyond(iter(sampler), count)  # iter() here: a sampler may draw in it

    def _rest(self, sampler: Any, count: int) -> Iterator[Any]:
        chunks = _chunks(sampler)
        if chunks is None:
            yield from self._beyond(iter(sampler), count)
            return
        rest = torch.empty(0, dtype=torch.int64)
        while count > 0:
            chunk = next(chunks, None)
            if chunk is None:
                break
            rest = chunk[count:]
            count -= len(chunk)
        self._arrived()
        named = _named(sampler)
        yield from named(rest)
        for chunk in chunks:
            yield from named(chunk)

    def _beyond(self, items: Any, count: int) -> Iterator[Any]:
        if type(items) in _JUMPING:
            items.__setstate__(count)
        else:
            next(islice(items, count, count), None)
        self._arrived()
        yield from items


def batches_drawn(sampler: Any) -> Iterator[Any]:
    """The batches of indices that a sampler gives, with its draws; as tensors where torch cuts."""
    if not is_plain(sampler, BatchSampler) or is_plain(sampler.sampler, SubsetRandomSampler):
        return iter(sampler)
    inner = sampler.sampler
    in_order = is_plain(inner, SequentialSampler)
    chunks = _drawn(lambda: torch.arange(len(inner))) if in_order else _chunks(inner)
    if chunks is None:
        return iter(sampler)
    return _cut(chunks, sampler.batch_size, sampler.drop_last)


def _cut(chunks: Iterator[Tensor], size: int, drop_last: bool) -> Iterator[Tensor]:
    """Batches of ``size``; a chunk is drawn when the one before it is used up."""
    rest = torch.empty(0, dtype=torch.int64)
    for chunk in chunks:
        rest = torch.cat([rest, chunk]) if len(rest) else chunk
        whole = len(rest) - len(rest) % size
        for begin in range(0, whole, size):
            yield rest[begin : begin + size]
        rest = rest[whole:]
    if len(rest) and not drop_last:
        yield rest


def draws_from_torch_alone(sampler: Any) -> bool:
    """Whether torch's generators decide all indices, because the sampler is one of torch's."""
    if is_plain(sampler, BatchSampler):
        sampler = sampler.sampler
    known = (SequentialSampler, DistributedSampler, list, tuple, range)
    return _chunks(sampler) is not None or any(is_plain(sampler, kind) for kind in known)


def is_plain(sampler: Any, kind: type) -> bool:
    """Whether the sampler goes through its indices as ``kind`` of torch does."""
    return isinstance(sampler, kind) and type(sampler).__iter__ is kind.__iter__  # type: ignore[attr-defined]


def _chunks(sampler: Any) -> Iterator[Tensor] | None:
    """What a sampler of torch draws, chunk by chunk and with its draws; None for other samplers."""
    if is_plain(sampler, RandomSampler):
        return _random_chunks(sampler)
    if is_plain(sampler, SubsetRandomSampler):
        return _drawn(lambda: torch.randperm(len(sampler.indices), generator=sampler.generator))
    if is_plain(sampler, WeightedRandomSampler):
        return _drawn(
            lambda: torch.multinomial(
                sampler.weights,
                sampler.num_samples,
                sampler.replacement,
                generator=sampler.generator,
            )
        )
    return None


def _drawn(draw: Callable[[], Tensor]) -> Iterator[Tensor]:
    yield draw()


def _random_chunks(sampler: RandomSampler) -> Iterator[Tensor]:
    size, wanted, generator = len(sampler.data_source), sampler.num_samples, sampler.generator
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    if sampler.replacement:
        for count in chain(repeat(32, wanted // 32), (wanted % 32,)):
            yield torch.randint(high=size, size=(count,), dtype=torch.int64, generator=generator)
        return
    for _ in range(wanted // size):
        yield torch.randperm(size, generator=generator)
    yield torch.randperm(size, generator=generator)[: wanted % size]  # drawn even when none is left


def _named(sampler: Any) -> Callable[[Tensor], Iterable[Any]]:
    """How what is drawn becomes indices of the dataset."""
    if isinstance(sampler, SubsetRandomSampler):
        indices = sampler.indices
        return lambda drawn: (indices[i] for i in drawn.tolist())
    return lambda drawn: drawn.tolist()
