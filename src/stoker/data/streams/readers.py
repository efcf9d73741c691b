"""Functions applied to records, and mixtures of several readers."""

import random
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch

from stoker.core.errors import DataError
from stoker.core.seed import mix_bits
from stoker.data.seeded import preserve_generators, seed_generators
from stoker.data.streams.order import Ints, epoch_key, permutation
from stoker.data.streams.sources import Dropped, Outcomes, Reader, Source

Function: TypeAlias = Callable[[Any], Any]


class Step(NamedTuple):
    """A function that changes records, or one that selects them."""

    kind: Literal["map", "filter"]
    function: Function


class Functions:
    """Functions that are applied one after another to items that have a number each.

    Random numbers that they draw from the global generators of Python, NumPy and torch depend only
    on the seed, the epoch and the number of the item. To seed them for every item takes longer
    than most functions, so this is only done once a function is seen to draw.

    Args:
        steps: the functions.
        seed: the seed of the stream.
        salt: different for each place in a stream.
    """

    def __init__(self, steps: Sequence[Step], seed: int, salt: int) -> None:
        self.steps = tuple(steps)
        self._seed, self._salt = seed, salt
        self._draws = False

    def apply(
        self,
        items: Callable[[], list[Any]],
        numbers: Sequence[int],
        epoch: int,
        on_error: Callable[[int, Exception], Any],
    ) -> list[Any]:
        """Return what becomes of each item; `Dropped` and `DataError` are passed on.

        Args:
            items: returns the items; it is called again if they have to be evaluated again.
            numbers: the number of each item.
            epoch: the epoch.
            on_error: called with the index of an item and what a function raised for it.
        """
        if not self.steps:
            return items()
        if not self._draws:
            before = _drawn_state()
            found = [self._apply(item, i, on_error) for i, item in enumerate(items())]
            if _same_state(before, _drawn_state()):
                return found
            _restore_state(before)
            self._draws = True
        key = mix_bits(epoch_key(self._seed, epoch) + self._salt)
        found = []
        with preserve_generators(np.random.MT19937(0)):
            for index, (item, number) in enumerate(zip(items(), numbers, strict=True)):
                seed_generators(mix_bits(key + number))
                found.append(self._apply(item, index, on_error))
        return found

    def _apply(self, item: Any, index: int, on_error: Callable[[int, Exception], Any]) -> Any:
        if isinstance(item, Dropped | DataError):
            return item
        try:
            for kind, function in self.steps:
                result = function(item)
                if kind == "map":
                    item = result
                elif not result:
                    return Dropped()
        except Exception as error:
            return on_error(index, error)
        return item


def _drawn_state() -> dict[str, Any]:
    """Return the state of the generators on the CPU, as far as it changes with every draw."""
    numpy: Any = np.random.get_state(legacy=False)
    torch_ = torch.default_generator.get_state()
    return {"python": random.getstate(), "numpy": numpy, "torch": torch_}


def _same_state(one: dict[str, Any], other: dict[str, Any]) -> bool:
    first, second = one["numpy"], other["numpy"]
    return (
        one["python"] == other["python"]
        and first["state"]["pos"] == second["state"]["pos"]
        and np.array_equal(first["state"]["key"], second["state"]["key"])
        and (first["has_gauss"], first["gauss"]) == (second["has_gauss"], second["gauss"])
        and torch.equal(one["torch"], other["torch"])
    )


def _restore_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.default_generator.set_state(state["torch"])


def function_error(where: str, error: Exception) -> DataError:
    """Return an error that names the record for which a function failed, with its traceback."""
    found = DataError(f"{where}: {type(error).__name__}: {error}")
    lines = traceback.format_exception(error)
    found.add_note("".join(lines).rstrip())
    return found


class AppliedReader:
    """Records after functions have been applied to them.

    Args:
        reader: the records.
        functions: the functions.
        skips: whether to leave out a record for which a function raises an error.
    """

    def __init__(self, reader: Reader, functions: Functions, skips: bool) -> None:
        self.reader, self.functions, self.skips = reader, functions, skips
        filters = any(step.kind == "filter" for step in functions.steps)
        self.drops = reader.drops or filters or skips

    @property
    def length(self) -> int:
        """The number of positions."""
        return self.reader.length

    @property
    def sources(self) -> list[Source]:
        """The sources of the records."""
        return self.reader.sources

    @property
    def described(self) -> dict[str, Any]:
        """The records and the functions."""
        steps = [[kind, function] for kind, function in self.functions.steps]
        return {"records": self.reader.described, "steps": steps}

    def span(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the span of the records."""
        return self.reader.span(epoch, position)

    def read(self, epoch: int, positions: Ints) -> Outcomes:
        """Return records, to which the functions are applied on demand."""
        return _AppliedOutcomes(self, self.reader.read(epoch, positions), epoch, positions)

    def mark(self, epoch: int, position: int) -> str:
        """Return the mark of the records."""
        return self.reader.mark(epoch, position)

    def seek(self, epoch: int, position: int, mark: str) -> None:
        """Prepare the records."""
        self.reader.seek(epoch, position, mark)


def steps_of(reader: Reader) -> tuple[Step, ...]:
    """Return the functions that are applied to the records of a reader."""
    return reader.functions.steps if isinstance(reader, AppliedReader) else ()


class _AppliedOutcomes:
    def __init__(self, owner: AppliedReader, inner: Outcomes, epoch: int, positions: Ints) -> None:
        self._owner, self._inner = owner, inner
        self._epoch, self._positions = epoch, positions

    def get(self, start: int, stop: int) -> list[Any]:
        numbers = self._positions[start:stop].tolist()

        def on_error(index: int, error: Exception) -> Any:
            found = function_error(self.where(start + index), error)
            return Dropped(str(found)) if self._owner.skips else found

        def items() -> list[Any]:
            return self._inner.get(start, stop)

        return self._owner.functions.apply(items, numbers, self._epoch, on_error)

    def where(self, index: int) -> str:
        return self._inner.where(index)


MIX_BLOCK = 10_000
"""Positions of a mixture in which each part has exactly its share."""


class MixedReader:
    """Records of several readers in fixed proportions.

    Each reader has its own passes, one after another: in each of them, every record comes once,
    whatever the length of a pass over the mixture.

    Args:
        readers: the readers.
        weights: a positive number for each.
        seed: the seed of the order in which readers take turns.
        until: the length of a pass: until the first reader has finished a pass of its own, until
            all have, or a number of records.
    """

    def __init__(
        self,
        readers: Sequence[Reader],
        weights: Sequence[float],
        seed: int,
        until: int | Literal["first", "all"],
    ) -> None:
        self.readers, self.seed = list(readers), seed
        self.quotas = _quotas(weights)
        self.drops = any(reader.drops for reader in readers)
        self.length = until if isinstance(until, int) else self._length(until)

    @property
    def sources(self) -> list[Source]:
        """The sources of all readers."""
        return [source for reader in self.readers for source in reader.sources]

    @property
    def described(self) -> dict[str, Any]:
        """The readers and their shares."""
        return {
            "parts": [reader.described for reader in self.readers],
            "shares": self.quotas.tolist(),
            "seed": self.seed,
            "length": self.length,
        }

    def span(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the positions in one block of the mixture."""
        before = epoch * self.length
        start = (before + position) // MIX_BLOCK * MIX_BLOCK
        return max(0, start - before), min(self.length, start - before + MIX_BLOCK)

    def read(self, epoch: int, positions: Ints) -> Outcomes:
        """Return records of the readers whose turns these positions are."""
        number, slots = divmod(positions + epoch * self.length, MIX_BLOCK)
        block = int(number[0])
        turns, ranks = self._turns(block)
        turns, ranks = turns[slots], ranks[slots]
        parts = [
            _Part(reader, ranks[turns == i] + block * int(self.quotas[i]))
            for i, reader in enumerate(self.readers)
        ]
        return _MixedOutcomes(parts, turns)

    def mark(self, epoch: int, position: int) -> str:
        """Return nothing: the turns are computed."""
        return ""

    def seek(self, epoch: int, position: int, mark: str) -> None:
        """Do nothing: any position can be read."""

    def _turns(self, block: int) -> tuple[Ints, Ints]:
        """Return whose turn each slot of a block is, and how many turns it had before."""
        order = permutation(MIX_BLOCK, mix_bits(mix_bits(self.seed) + block))
        turns = np.repeat(np.arange(len(self.readers)), self.quotas)[order]
        ranks = np.empty_like(turns)
        for i in range(len(self.readers)):
            ranks[turns == i] = np.arange(self.quotas[i])
        return turns, ranks

    def _length(self, until: str) -> int:
        """Return the number of positions until the first reader has ended, or all have."""
        lengths = np.array([reader.length for reader in self.readers])
        blocks = (lengths - 1) // self.quotas  # in which each has its last turn
        last = int(blocks.min() if until == "first" else blocks.max())
        turns, _ = self._turns(last)
        ends = [
            int(np.flatnonzero(turns == i)[int(n - 1 - last * q)])
            for i, (n, q) in enumerate(zip(lengths, self.quotas, strict=True))
            if blocks[i] == last
        ]
        end = min(ends) if until == "first" else max(ends)
        return last * MIX_BLOCK + end + 1


class _Part:
    """The records that one reader contributes, in its own order."""

    def __init__(self, reader: Reader, positions: Ints) -> None:
        self._starts: list[int] = []
        self._outcomes: list[Outcomes] = []
        epochs, positions = np.divmod(positions, reader.length)
        at = 0
        while at < len(positions):
            epoch = int(epochs[at])
            _, stop = reader.span(epoch, int(positions[at]))
            same = (epochs[at:] == epoch) & (positions[at:] < stop)
            count = int(same.sum())
            self._starts.append(at)
            self._outcomes.append(reader.read(epoch, positions[at : at + count]))
            at += count
        self._starts.append(at)

    def get(self, start: int, stop: int) -> list[Any]:
        found: list[Any] = []
        for number, outcomes in enumerate(self._outcomes):
            first, end = self._starts[number], self._starts[number + 1]
            if start < end and stop > first:
                found += outcomes.get(max(start, first) - first, min(stop, end) - first)
        return found

    def where(self, index: int) -> str:
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self._outcomes[number].where(index - self._starts[number])


class _MixedOutcomes:
    def __init__(self, parts: list[_Part], turns: Ints) -> None:
        self._parts, self._turns = parts, turns

    def get(self, start: int, stop: int) -> list[Any]:
        turns = self._turns[start:stop]
        before = [int((self._turns[:start] == i).sum()) for i in range(len(self._parts))]
        found = [
            iter(part.get(before[i], before[i] + int((turns == i).sum())))
            for i, part in enumerate(self._parts)
        ]
        return [next(found[turn]) for turn in turns.tolist()]

    def where(self, index: int) -> str:
        turn = int(self._turns[index])
        return self._parts[turn].where(int((self._turns[:index] == turn).sum()))


def _quotas(weights: Sequence[float]) -> Ints:
    """Return how many records of each reader are in a block, by the largest remainders."""
    shares = np.asarray(weights, float) / sum(weights) * MIX_BLOCK
    quotas: Ints = np.floor(shares).astype(np.int64)
    order = np.argsort(quotas - shares, kind="stable")
    quotas[order[: MIX_BLOCK - int(quotas.sum())]] += 1
    if (quotas == 0).any():
        smallest = min(weights) / sum(weights)
        raise ValueError(
            f"the smallest weight is {smallest:.3g} of their sum, expected at least "
            f"{1 / MIX_BLOCK:g}"
        )
    return quotas
