"""`Feed`: the batches of a loader, in the windows that make one step."""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import islice
from math import ceil
from time import perf_counter
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from stoker.types import Batch

LastWindow: TypeAlias = Literal["flush", "drop"]
Loaders: TypeAlias = Iterable[Batch] | Mapping[str, Iterable[Batch]]

_END = object()


class Feed:
    """One pass after another over a loader, ``accumulate`` batches at a time.

    Args:
        loader: anything that can be iterated, with or without a length.
        accumulate: batches per window; a window makes one step.
        last_window: a last window with fewer batches makes a smaller step ("flush") or none
            ("drop").
        limit: at most so many batches per pass, or that share of them as a float.

    With `timed` set, `waited` is the seconds that batches took to come, all passes together.
    """

    def __init__(
        self,
        loader: Iterable[Batch],
        accumulate: int = 1,
        *,
        last_window: LastWindow = "flush",
        limit: int | float | None = None,
        name: str = "train_loader",
    ) -> None:
        if isinstance(loader, Tensor | np.ndarray):
            raise TypeError(
                f"{name} is an array of shape {list(loader.shape)}, expected a DataLoader or "
                "another iterable of batches (to predict one batch, give a tensor)"
            )
        if not isinstance(loader, Iterable):
            raise TypeError(
                f"{name} is a {type(loader).__name__}, expected a DataLoader or another iterable "
                "of batches"
            )
        if type(accumulate) is not int or accumulate < 1:
            raise ValueError(f"accumulate is a whole number from 1, got {accumulate!r}")
        if last_window not in ("flush", "drop"):
            raise ValueError(f"last_window is 'flush' or 'drop', got {last_window!r}")
        self.loader = loader
        self.accumulate = accumulate
        self.last_window = last_window
        length = length_of(loader)
        self._cap = _limited(length, limit, name) if limit is not None else None
        self.batches = length if length is None or self._cap is None else self._cap
        self._name = name
        self._ended = False
        self.position = 0
        self.timed = False
        self.waited = 0.0
        if self.batches == 0:
            raise ValueError(
                f"{name} is empty: it has no batches{_why_empty(loader)}, expected at least one"
            )
        if self.steps == 0:
            raise ValueError(
                f"{name} has {self.batches} batches, which make no step of {accumulate}: "
                "use last_window='flush' or a smaller accumulate"
            )

    @property
    def steps(self) -> int | None:
        """Windows per pass, None where the loader has no length."""
        if self.batches is None:
            return None
        whole, rest = divmod(self.batches, self.accumulate)
        return whole + (1 if rest and self.last_window == "flush" else 0)

    @property
    def exhausted(self) -> bool:
        """Whether the pass in progress has handed out every batch it will, as far as known."""
        if self._ended or self.batches is None:
            return self._ended
        left = self.batches - self.position
        return left < (self.accumulate if self.last_window == "drop" else 1)

    def generators(self) -> list[torch.Generator]:
        """The generators that loader and sampler draw from, beside the global one."""
        sampler = getattr(self.loader, "sampler", None)
        found = [getattr(owner, "generator", None) for owner in (self.loader, sampler)]
        unique = {id(one): one for one in found if isinstance(one, torch.Generator)}
        return list(unique.values())

    def __iter__(self) -> Iterator[list[Batch]]:
        """One pass; `position` counts the batches handed out."""
        self.position, self._ended = 0, False
        size = self.accumulate
        source: Iterable[Batch] = self.loader
        if self._cap is not None:
            source = islice(source, self._cap)
        if self.timed:
            source = self._timed(source)
        window: list[Batch] = []
        for batch in source:
            window.append(batch)
            if len(window) == size:
                self.position += size
                yield window
                window = []
        if window and self.last_window == "flush":
            self.position += len(window)
            yield window
        if not self.position:
            raise ValueError(
                f"{self._name} gave {len(window)} batches, not enough for a step: an iterator can "
                "be read only once, so pass a list or a DataLoader"
            )
        self._ended = True

    def _timed(self, source: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches; `waited` grows by the seconds that each took to come."""
        batches = iter(source)
        while True:
            began = perf_counter()
            batch = next(batches, _END)
            self.waited += perf_counter() - began
            if batch is _END:
                return
            yield batch


def val_feeds_of(loader: Loaders | None, limit: int | float | None) -> dict[str, Feed]:
    """Validation data by the prefix of its results: "val", or "val/<name>"."""
    if loader is None:
        return {}
    if isinstance(loader, int):
        raise TypeError(f"val_loader is {loader}, expected a loader: did you mean epochs={loader}?")
    if isinstance(loader, Mapping):
        if not loader:
            raise ValueError("val_loader is an empty mapping: expected loaders by name, or None")
        named: dict[str, Iterable[Batch]] = {f"val/{name}": one for name, one in loader.items()}
    else:
        named = {"val": loader}
    return {name: Feed(one, limit=limit, name=f"{name} loader") for name, one in named.items()}


def count_of(name: str, value: Any) -> int | None:
    """A number of epochs or steps, or None for no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
        raise ValueError(f"{name} is a whole number from 0, got {value!r}")
    return operator.index(value)


def take(loader: Iterable[Batch], limit: int | float) -> list[Batch]:
    """The first batches of a loader, so many or that share of them, as a list."""
    return list(islice(loader, _limited(length_of(loader), limit, "train_loader")))


def length_of(loader: Any) -> int | None:
    """The number of batches, None where the loader does not know it."""
    if not isinstance(loader, Sized):
        return None
    try:
        return len(loader)
    except TypeError:  # a DataLoader over an iterable dataset has __len__ and no length
        return None


def _limited(length: int | None, limit: int | float, name: str) -> int:
    if isinstance(limit, bool) or limit <= 0 or (isinstance(limit, float) and limit > 1):
        raise ValueError(
            f"a limit on {name} is a number of batches from 1, or a share up to 1.0, got {limit}"
        )
    if isinstance(limit, float):
        if length is None:
            raise ValueError(
                f"a share of {name} was asked for ({limit}), but it has no length: give a number"
            )
        return max(1, ceil(length * limit)) if length else 0
    return limit if length is None else min(limit, length)


def _why_empty(loader: Any) -> str:
    if getattr(loader, "drop_last", False) and getattr(loader, "dataset", None):
        return (
            f" (its {len(loader.dataset)} samples do not fill one batch of {loader.batch_size} "
            "and drop_last is on)"
        )
    return ""
