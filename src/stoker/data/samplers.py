"""Torch's index samplers: skip their first indices, or draw their batches as tensors.

Both make exactly the random draws that torch makes, in the same order.
"""

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

from stoker.data.permutation import PermutationIterator, PermutationSampler

_JUMPING: tuple[type, ...] = (
    *(type(iter([])), type(iter(())), type(iter(range(0)))),
    PermutationIterator,
)
"""Iterators that can jump to any index with ``__setstate__``."""


class SkippingSampler:
    """Yields what ``sampler`` yields after its first ``count`` items.

    The random draws are those of torch, in the same order and at the same time. The indices that
    a torch sampler skips are never visited one by one; any other sampler is iterated.

    Args:
        sampler: the index sampler of a loader.
        count: the number of items to skip: batches of indices, or indices if nothing is batched.
        before_skip: called first whenever an iterator is requested.
        after_skip: called once the items are skipped, before anything else is drawn.
    """

    def __init__(
        self,
        sampler: Any,
        count: int,
        *,
        before_skip: Callable[[], None] | None,
        after_skip: Callable[[], None],
    ) -> None:
        self._sampler = sampler
        self._count = count
        self._before_skip = before_skip
        self._after_skip = after_skip

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the rest; it draws with its first item, as torch's does."""
        if self._before_skip is not None:
            self._before_skip()
        sampler, count = self._sampler, self._count
        if is_plain(sampler, BatchSampler):
            rest = self._rest(sampler.sampler, count * sampler.batch_size)
            return iter(BatchSampler(rest, sampler.batch_size, sampler.drop_last))
        if _chunks(sampler) is not None:
            return self._rest(sampler, count)
        return self._skip(iter(sampler), count)  # iter() here: a sampler may draw in it

    def _rest(self, sampler: Any, count: int) -> Iterator[Any]:
        chunks = _chunks(sampler)
        if chunks is None:
            yield from self._skip(iter(sampler), count)
            return
        rest = torch.empty(0, dtype=torch.int64)
        while count > 0:
            chunk = next(chunks, None)
            if chunk is None:
                break
            rest = chunk[count:]
            count -= len(chunk)
        self._after_skip()
        to_indices = _to_indices(sampler)
        yield from to_indices(rest)
        for chunk in chunks:
            yield from to_indices(chunk)

    def _skip(self, items: Any, count: int) -> Iterator[Any]:
        if type(items) in _JUMPING:
            items.__setstate__(count)
        else:
            next(islice(items, count, count), None)
        self._after_skip()
        yield from items


def batches_drawn(sampler: Any) -> Iterator[Any]:
    """Iterate over a batch sampler with its draws; torch's own samplers yield tensors."""
    if not is_plain(sampler, BatchSampler) or is_plain(sampler.sampler, SubsetRandomSampler):
        return iter(sampler)
    inner = sampler.sampler
    sequential = is_plain(inner, SequentialSampler)
    chunks = _one_chunk(lambda: torch.arange(len(inner))) if sequential else _chunks(inner)
    if chunks is None:
        return iter(sampler)
    return _split(chunks, sampler.batch_size, sampler.drop_last)


def _split(chunks: Iterator[Tensor], size: int, drop_last: bool) -> Iterator[Tensor]:
    """Yield batches of ``size``; draw a chunk when the one before it is used up."""
    rest = torch.empty(0, dtype=torch.int64)
    for chunk in chunks:
        rest = torch.cat([rest, chunk]) if len(rest) else chunk
        full = len(rest) - len(rest) % size
        for begin in range(0, full, size):
            yield rest[begin : begin + size]
        rest = rest[full:]
    if len(rest) and not drop_last:
        yield rest


def draws_only_from_torch(sampler: Any) -> bool:
    """Return whether the sampler is one of torch's, which draw from torch's generators only."""
    if is_plain(sampler, BatchSampler):
        sampler = sampler.sampler
    known = (SequentialSampler, DistributedSampler, PermutationSampler, list, tuple, range)
    return _chunks(sampler) is not None or any(is_plain(sampler, kind) for kind in known)


def is_plain(sampler: Any, kind: type) -> bool:
    """Return whether the sampler is a ``kind`` of torch and iterates as torch implements it."""
    return isinstance(sampler, kind) and type(sampler).__iter__ is kind.__iter__  # type: ignore[attr-defined]


def _chunks(sampler: Any) -> Iterator[Tensor] | None:
    """Return what one of torch's samplers draws, chunk by chunk; None for other samplers."""
    if is_plain(sampler, RandomSampler):
        return _random_chunks(sampler)
    if is_plain(sampler, SubsetRandomSampler):
        return _one_chunk(lambda: torch.randperm(len(sampler.indices), generator=sampler.generator))
    if is_plain(sampler, WeightedRandomSampler):
        return _one_chunk(
            lambda: torch.multinomial(
                sampler.weights,
                sampler.num_samples,
                sampler.replacement,
                generator=sampler.generator,
            )
        )
    return None


def _one_chunk(draw: Callable[[], Tensor]) -> Iterator[Tensor]:
    yield draw()


def _random_chunks(sampler: RandomSampler) -> Iterator[Tensor]:
    size, total, generator = len(sampler.data_source), sampler.num_samples, sampler.generator
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    if sampler.replacement:
        for count in chain(repeat(32, total // 32), (total % 32,)):
            yield torch.randint(high=size, size=(count,), dtype=torch.int64, generator=generator)
        return
    for _ in range(total // size):
        yield torch.randperm(size, generator=generator)
    yield torch.randperm(size, generator=generator)[: total % size]  # drawn even if it is empty


def _to_indices(sampler: Any) -> Callable[[Tensor], Iterable[Any]]:
    """Return the function that maps drawn numbers to indices of the dataset."""
    if isinstance(sampler, SubsetRandomSampler):
        indices = sampler.indices
        return lambda drawn: (indices[i] for i in drawn.tolist())
    return lambda drawn: drawn.tolist()
