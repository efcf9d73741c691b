"""`SeededDataset`: random numbers that depend on the sample, not on the process that reads it."""

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

from stoker.core.seed import mix_bits


class SeededDataset(Dataset[Any]):
    """A map-style dataset whose random numbers depend only on seed, epoch and index.

    The global generators of Python, NumPy and torch are seeded before each sample is read and
    restored afterwards. So augmentation is the same with any number of workers, in any order, and
    after a run was resumed in the middle of an epoch.

        loader = DataLoader(SeededDataset(images, seed=1), batch_size=32, num_workers=4)

    Args:
        dataset: the dataset to wrap. Its attributes are available here too.
        seed: the seed of all samples.

    Samples are read one by one, even if the dataset has ``__getitems__``. Generators that the
    dataset owns are not seeded.
    """

    def __init__(self, dataset: Any, seed: int = 0) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise TypeError(
                f"SeededDataset got a {type(dataset).__name__}, expected a map-style dataset "
                "(one with __getitem__)"
            )
        if type(seed) is not int:
            raise TypeError(f"seed must be an integer, got {seed!r}")
        self.dataset = dataset
        self.seed = seed
        self._bits = np.random.MT19937(0)
        self._epoch = torch.zeros(1, dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    @property
    def epoch(self) -> int:
        """The epoch that samples are read for."""
        return int(self._epoch.item())

    def set_epoch(self, epoch: int) -> None:
        """Read samples for this epoch from now on, also in workers that are running already."""
        self._epoch.fill_(epoch)
        inner = getattr(self.dataset, "set_epoch", None)
        if inner is not None:
            inner(epoch)

    def __getitem__(self, index: Any) -> Any:
        with preserve_generators(self._bits):
            return self._read(index, self._key())

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Return the samples of a batch; save and restore the generators once for all of them."""
        with preserve_generators(self._bits):
            key = self._key()
            return [self._read(index, key) for index in indices]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset" or name.startswith(
            "__"
        ):  # not set yet, or looked up by copy and pickle
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dataset, name)

    def _key(self) -> int:
        return mix_bits(mix_bits(self.seed) + self.epoch)

    def _read(self, index: Any, key: int) -> Any:
        seed_generators(mix_bits(key + _index_to_int(index)))
        return self.dataset[index]


@contextmanager
def preserve_generators(bits: np.random.MT19937) -> Iterator[None]:
    """Restore the global generators on exit, so that they may be seeded within the context.

    NumPy's bit generator is swapped for ``bits``, which is far cheaper than copying its state. The
    swap loses only a cached normal sample; if there is one, the state is copied back.
    """
    python, torch_ = random.getstate(), torch.default_generator.get_state()
    numpy, source = np.random.get_state(legacy=False), get_bit_generator()
    set_bit_generator(bits)
    try:
        yield
    finally:
        set_bit_generator(source)
        if numpy["has_gauss"] or source is bits:  # swapped already: nested samples
            np.random.set_state(numpy)
        torch.default_generator.set_state(torch_)
        random.setstate(python)


def seed_generators(number: int) -> None:
    """Seed the global generators of Python, NumPy and torch with 64 bits."""
    random.seed(number)
    np.random.seed(number >> 32)
    torch.default_generator.manual_seed(number & 0xFFFFFFFF)


def _index_to_int(index: Any) -> int:
    """Convert an index to an int: itself, or a digest of its repr."""
    try:
        return operator.index(index)
    except TypeError:
        return int.from_bytes(blake2b(repr(index).encode(), digest_size=8).digest(), "big")
