"""The order of a pass: blocks are shuffled, then records within a window of blocks.

    blocks     7 2 9 | 0 4 1 | 8 3 …      shuffled by the seed and the epoch
    windows    └─0─┘   └─1─┘              consecutive blocks of about as many records as requested
    records    shuffled within each window

The order is a function of the seed, the epoch and the position. Nothing is remembered, so any
position is found by a binary search over the windows.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.core.seed import mix_bits

Ints: TypeAlias = NDArray[np.int64]

WINDOW_RECORDS = 8192
WINDOW_BYTES = 32 << 20
"""A window has at most about this many bytes, whatever its number of records."""


@dataclass(frozen=True, slots=True)
class Window:
    """Some positions of a pass: the blocks to read for them, and the records in their order.

    Args:
        start: the first position.
        stop: the position after the last one.
        blocks: the numbers of the blocks.
        records: for each position, the index into the records of these blocks.
    """

    start: int
    stop: int
    blocks: Ints
    records: Ints


class Order:
    """The order of one pass over blocks of records.

    Args:
        counts: the number of records in each block.
        sizes: the number of bytes of each block.
        window: the number of records to shuffle at a time; 0 keeps the order of the blocks.
        key: the seed and the epoch, as one number.
    """

    def __init__(self, counts: Ints, sizes: Ints, window: int, key: int) -> None:
        self._window, self._key = window, key
        self._blocks = permutation(len(counts), key) if window else np.arange(len(counts))
        counts, sizes = counts[self._blocks], sizes[self._blocks]
        starts = np.concatenate(([0], np.cumsum(counts)))
        cost = np.maximum(counts / (window or WINDOW_RECORDS), sizes / WINDOW_BYTES)
        number = np.floor(np.cumsum(cost) - cost + 1e-9)  # of the window that each block is in
        first = np.flatnonzero(np.diff(number, prepend=-1.0)) if len(counts) else np.zeros(0, int)
        self._bounds = np.append(first, len(counts))
        self._starts = starts[self._bounds]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def span(self, position: int) -> tuple[int, int]:
        """Return the first position of the window that holds a position, and its end."""
        number = self._number(position)
        return int(self._starts[number]), int(self._starts[number + 1])

    def window(self, position: int) -> Window:
        """Return the window that holds a position."""
        number = self._number(position)
        start, stop = self.span(position)
        blocks = self._blocks[self._bounds[number] : self._bounds[number + 1]]
        count = stop - start
        key = mix_bits(self._key + number + 1)
        records = permutation(count, key) if self._window else np.arange(count)
        return Window(start, stop, blocks, records)

    def _number(self, position: int) -> int:
        return int(np.searchsorted(self._starts, position, side="right")) - 1


def permutation(count: int, key: int) -> Ints:
    """Return the numbers below ``count`` in an order that depends on the key alone.

    They are sorted by a hash that is a bijection, so no two are equal, and the order is the same
    with every version of NumPy.
    """
    bits = np.arange(count, dtype=np.uint64) + np.uint64(key)
    bits += np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(bits ^ (bits >> np.uint64(31)))


def epoch_key(seed: int, epoch: int) -> int:
    """Return one number for a seed and an epoch."""
    return mix_bits(mix_bits(seed) + epoch)
