"""`PermutationSampler`: shuffle a dataset of any length in constant memory."""

from collections.abc import Iterator, Sized

import torch
from torch import Tensor
from torch.utils.data import Sampler

from stoker.core.errors import check_number

_CHUNK = 4096
_ROUNDS = 8
_MAX_LENGTH = 2**62


class PermutationSampler(Sampler[int]):
    """Yields every index once, in another order in each pass, without storing the order.

        loader = DataLoader(dataset, batch_size=256, sampler=PermutationSampler(dataset))

    Torch's ``shuffle=True`` draws a list of all indices: 8 GB and more for a billion of them, and
    seconds before the first batch. This sampler draws one number per pass, and computes the index
    at any position from it, by a Feistel network. A run resumes at any position at once. The
    order is well mixed, but not each of all possible orders can occur.

    Args:
        data: the dataset, or its length.
        generator: draws the number of each pass; None means torch's global generator.
    """

    def __init__(self, data: Sized | int, *, generator: torch.Generator | None = None) -> None:
        length = data if isinstance(data, int) else len(data)
        check_number("the length of the data", length, integer=True)
        if not 0 <= length <= _MAX_LENGTH:
            raise ValueError(f"the length of the data must be from 0 to 2**62, got {length}")
        self._length = length
        self.generator = generator

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        """Return an iterator over a new order; it draws with its first index, as torch's does."""
        return PermutationIterator(self._length, self.generator)


class PermutationIterator(Iterator[int]):
    """Yields the indices of one pass; `__setstate__` moves it to any position."""

    def __init__(self, length: int, generator: torch.Generator | None) -> None:
        self._length, self._generator = length, generator
        self._keys: list[int] | None = None
        self._position = 0
        self._rest: Iterator[int] = iter(())

    def __setstate__(self, position: int) -> None:
        """Continue at a position, without visiting those before."""
        self._draw()
        self._position, self._rest = position, iter(())

    def __next__(self) -> int:
        for index in self._rest:
            return index
        self._draw()
        end = min(self._position + _CHUNK, self._length)
        if self._position >= end:
            raise StopIteration
        positions = torch.arange(self._position, end)
        self._position, self._rest = end, iter(self._indices(positions))
        return next(self._rest)

    def _indices(self, positions: Tensor) -> list[int]:
        """Return the indices at some positions; a network does not mix few numbers well."""
        assert self._keys is not None
        if self._length > _CHUNK:
            return permuted(positions, self._length, self._keys)
        drawn = torch.Generator().manual_seed(self._keys[0])
        indices: list[int] = torch.randperm(self._length, generator=drawn)[positions].tolist()
        return indices

    def _draw(self) -> None:
        if self._keys is None:
            seed = torch.empty((), dtype=torch.int64).random_(generator=self._generator)
            keys = torch.Generator().manual_seed(int(seed))
            drawn = torch.empty(_ROUNDS, dtype=torch.int64).random_(generator=keys)
            self._keys = drawn.tolist()


def permuted(positions: Tensor, length: int, keys: list[int]) -> list[int]:
    """Return the indices at some positions of the order that the keys define.

    A Feistel network permutes the numbers of as many bits as the length has. A number beyond the
    length is permuted again, until it is one below it; so the result is a permutation, too.
    """
    bits = max(2, (length - 1).bit_length())
    found = _network(positions, bits, keys)
    while (beyond := (found >= length).nonzero().squeeze(1)).numel():
        found[beyond] = _network(found[beyond], bits, keys)
    indices: list[int] = found.tolist()
    return indices


def _network(numbers: Tensor, bits: int, keys: list[int]) -> Tensor:
    """Permute the numbers of ``bits`` bits."""
    left_bits, right_bits = bits // 2, bits - bits // 2
    left, right = numbers >> right_bits, numbers & ((1 << right_bits) - 1)
    for key in keys:
        left, right = right, (left ^ _mixed(right, key)) & ((1 << left_bits) - 1)
        left_bits, right_bits = right_bits, left_bits
    return (left << right_bits) | right


def _mixed(numbers: Tensor, key: int) -> Tensor:
    """Return numbers of 63 bits in which every bit of the input matters (as in SplitMix64)."""
    mixed = (numbers ^ key) * -0x61C8864680B583EB
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        mixed = (mixed ^ ((mixed >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return (mixed >> 31) & ((1 << 33) - 1)
