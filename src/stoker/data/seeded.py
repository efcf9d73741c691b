"""`SeededDataset`: random numbers that belong to the sample, not to the process that makes it."""

import operator
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from torch.utils.data import Dataset, IterableDataset

_MASK = 2**64 - 1


class SeededDataset(Dataset[Any]):
    """A map-style dataset in which what sample i draws depends on seed, epoch and i alone.

    Python's ``random``, NumPy's and torch's global generators are seeded before each sample is
    made, and afterwards are as they were. So augmentation is the same with any number of workers,
    in any order, and after a run was continued in the middle of an epoch.

        loader = DataLoader(SeededDataset(images, seed=1), batch_size=32, num_workers=4)

    Args:
        dataset: what makes the samples. Its attributes are found here too.
        seed: another seed gives other random numbers.

    A batch is made sample by sample, even where the dataset could make it at once. Generators
    that the dataset keeps itself are not seeded.
    """

    def __init__(self, dataset: Any, seed: int = 0) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise TypeError(
                f"SeededDataset got a {type(dataset).__name__}, expected a map-style dataset "
                "(one with __getitem__)"
            )
        if type(seed) is not int:
            raise TypeError(f"seed is a whole number, got {seed!r}")
        self.dataset = dataset
        self.seed = seed
        self._bits = np.random.MT19937(0)
        self._epoch = torch.zeros(1, dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    @property
    def epoch(self) -> int:
        """The epoch in which samples are made."""
        return int(self._epoch.item())

    def set_epoch(self, epoch: int) -> None:
        """Samples are made for this epoch from now on, also by workers that already run."""
        self._epoch.fill_(epoch)
        inner = getattr(self.dataset, "set_epoch", None)
        if inner is not None:
            inner(epoch)

    def __getitem__(self, index: Any) -> Any:
        with _generators_lent(self._bits):
            return self._make(index, self._key())

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """The samples of a batch; the generators are saved and restored once for all of them."""
        with _generators_lent(self._bits):
            key = self._key()
            return [self._make(index, key) for index in indices]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset" or name.startswith("__"):  # not set yet, or asked by copy and pickle
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dataset, name)

    def _key(self) -> int:
        return _mixed(_mixed(self.seed) + self.epoch)

    def _make(self, index: Any, key: int) -> Any:
        number = _mixed(key + _number(index))
        random.seed(number)
        np.random.seed(number >> 32)
        torch.default_generator.manual_seed(number & 0xFFFFFFFF)
        return self.dataset[index]


@contextmanager
def _generators_lent(bits: np.random.MT19937) -> Iterator[None]:
    """Within it the global generators may be seeded; afterwards they are as they were.

    The source of NumPy's is exchanged for ``bits`` and then put back, which costs nothing beside
    copying its state. Only the normal number that it may have in store is lost by that, and comes
    back by a copy.
    """
    python, torch_ = random.getstate(), torch.default_generator.get_state()
    numpy, source = np.random.get_state(legacy=False), get_bit_generator()
    set_bit_generator(bits)
    try:
        yield
    finally:
        set_bit_generator(source)
        if numpy["has_gauss"] or source is bits:  # lent already where samples are made of samples
            np.random.set_state(numpy)
        torch.default_generator.set_state(torch_)
        random.setstate(python)


def _mixed(number: int) -> int:
    """64 bits in which every bit of ``number`` has a say: the finalizer of splitmix64."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


def _number(index: Any) -> int:
    """An index as a number: itself, or a digest of how it is written."""
    try:
        return operator.index(index)
    except TypeError:
        return int.from_bytes(blake2b(repr(index).encode(), digest_size=8).digest(), "big")
