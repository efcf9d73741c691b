"""Hugging Face datasets without random access: read in their order, shuffled within windows."""

import json
import sys
from collections.abc import Iterator
from copy import deepcopy
from itertools import islice
from typing import Any

import numpy as np

from stoker.core.digest import digest
from stoker.core.seed import mix_bits
from stoker.data.streams.formats import ListedRecords, Records
from stoker.data.streams.order import WINDOW_RECORDS, Ints, epoch_key, permutation
from stoker.data.streams.sources import Dropped, Outcomes, Source

_REMEMBERED = 16


class IterableSource:
    """The examples of a ``datasets.IterableDataset``, whose number is not known.

    Args:
        dataset: the dataset; it must not shuffle, because its state would leave out its buffer.
    """

    is_remote = False

    def __init__(self, dataset: Any) -> None:
        self.dataset = deepcopy(dataset)  # its state is that of the last iterator
        self.counts = self.sizes = np.zeros(0, np.int64)
        kinds = digest([str(dataset.features), str(dataset.split)])
        self.fingerprint = f"iterable-{dataset.num_shards}-{kinds}"
        self.versions: dict[str, str] = {}

    def load(self, blocks: Ints) -> Records:
        """Return nothing: there are no blocks."""
        return ListedRecords([])

    def where(self, block: int, index: int) -> str:
        """Return the number of an example."""
        return f"example {index} of the dataset"

    def summary(self) -> str:
        """Return the kind and the number of shards."""
        return f"datasets.IterableDataset, {self.dataset.num_shards} shards"


class IterableReader:
    """The examples of an iterable dataset in windows.

    Its number of examples is known once it has been read to its end. A position is found by the
    state that the dataset had at the start of its window, which is part of a saved state; without
    it, the dataset is read from its start.

    Args:
        source: the dataset.
        window: how many examples are shuffled at a time, 0 for none.
        seed: the seed of the order.
    """

    drops = True

    def __init__(self, source: IterableSource, window: int, seed: int) -> None:
        self.source, self.window, self.seed = source, window, seed
        self.length = sys.maxsize
        self._size = window or WINDOW_RECORDS
        self._at: tuple[int, int] = (-1, 0)  # epoch and window that are read next
        self._examples: Iterator[Any] = iter(())
        self._states: dict[tuple[int, int], str] = {}

    @property
    def sources(self) -> list[Source]:
        """The dataset."""
        return [self.source]

    @property
    def described(self) -> dict[str, Any]:
        """What is known of the data, and the settings of its order."""
        known = self.source.fingerprint
        return {"fingerprint": known, "shuffle": self.window, "seed": self.seed}

    def span(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the window of a position."""
        start = position // self._size * self._size
        return start, start + self._size

    def read(self, epoch: int, positions: Ints) -> Outcomes:
        """Return the examples of a window; positions after the end have none."""
        number = int(positions[0]) // self._size
        self._go_to(epoch, number)
        examples = list(islice(self._examples, self._size))
        self._at = epoch, number + 1
        start = number * self._size
        if len(examples) < self._size:
            self.length = start + len(examples)
        order = np.arange(len(examples))
        if self.window:
            key = mix_bits(epoch_key(self.seed, epoch) + number + 1)
            order = permutation(len(examples), key)
        return _Examples(examples, order, positions - start, start)

    def mark(self, epoch: int, position: int) -> str:
        """Return the state of the dataset at the start of the window of a position."""
        return self._states.get((epoch, position // self._size), "")

    def seek(self, epoch: int, position: int, mark: str) -> None:
        """Remember the state of the dataset for a position that is read next."""
        self.length = sys.maxsize
        if mark:
            self._states[epoch, position // self._size] = mark

    def _go_to(self, epoch: int, number: int) -> None:
        """Make a window the next one to be read, and remember the state of the dataset there."""
        dataset = self.source.dataset
        if self._at != (epoch, number):
            if epoch != self._at[0]:
                self.length = sys.maxsize
            state = self._states.get((epoch, number), "{}")
            dataset.set_epoch(epoch)
            dataset.load_state_dict(json.loads(state))  # an empty one is the start
            self._examples = iter(dataset)
            if state != "{}" or number == 0:
                return
            self._skip(number * self._size)
        self._states[epoch, number] = json.dumps(dataset.state_dict())
        while len(self._states) > _REMEMBERED:
            self._states.pop(next(iter(self._states)))

    def _skip(self, count: int) -> None:
        for _ in islice(self._examples, count):
            pass


class _Examples:
    def __init__(self, examples: list[Any], order: Ints, picks: Ints, start: int) -> None:
        self._examples, self._order, self._picks, self._start = examples, order, picks, start

    def get(self, start: int, stop: int) -> list[Any]:
        count = len(self._order)
        return [
            self._examples[self._order[pick]] if pick < count else Dropped()
            for pick in self._picks[start:stop].tolist()
        ]

    def where(self, index: int) -> str:
        return f"example {self._start + int(self._order[self._picks[index]])} of the dataset"
