"""`BatchFeeder`: the batches of a loader, in the windows that make one step."""

import operator
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from time import perf_counter
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from stoker.core.types import Batch
from stoker.data.dataloader import (
    generators_of,
    length_of,
    limited,
    tell_epoch,
    tell_part,
    wake,
    why_empty,
    workers_run,
)
from stoker.data.resume.position import check_unchanged, description_of, is_recut, strategy_for
from stoker.data.resume.rng import RngSnapshot, packed, set_states, states_of, unpacked
from stoker.data.resume.strategies import Position, ShardedStrategy
from stoker.data.sharding.shard import DataShard, in_order, tell_undivided, way_of
from stoker.data.sharding.synced import longest_of, together

LastWindow: TypeAlias = Literal["flush", "drop"]
Loaders: TypeAlias = Iterable[Batch] | Mapping[str, Iterable[Batch]]

_END = object()
_ALONE = DataShard()


class BatchFeeder:
    """One pass after another over a loader, ``accumulate`` batches at a time.

    Args:
        loader: anything that can be iterated, with or without a length.
        accumulate: batches per window; a window makes one step.
        last_window: a last window with fewer batches makes a smaller step ("flush") or none
            ("drop").
        limit: at most so many batches per pass, or that share of them as a float.
        part: which part of the data this process reads, where there are several. Every process
            makes its feed, and takes as many windows as the others.

    With `timed` set, `waited` is the seconds that batches took to come, all passes together.
    With `epoch` set, each pass tells that number to the loader's parts that have ``set_epoch``.
    `state_dict` is the position; after `load_state_dict` the next pass is what was left of the one
    in progress, with the bits it would have had. Restore the global random numbers before that
    pass begins. What draws at random in worker processes needs a `SeededDataset`.
    """

    def __init__(
        self,
        loader: Iterable[Batch],
        accumulate: int = 1,
        *,
        last_window: LastWindow = "flush",
        limit: int | float | None = None,
        name: str = "train_loader",
        part: DataShard = _ALONE,
    ) -> None:
        _check_iterable(loader, name)
        if type(accumulate) is not int or accumulate < 1:
            raise ValueError(f"accumulate is a whole number from 1, got {accumulate!r}")
        if last_window not in ("flush", "drop"):
            raise ValueError(f"last_window is 'flush' or 'drop', got {last_window!r}")
        self.loader = loader
        self.accumulate = accumulate
        self.last_window = last_window
        self._name = name
        self._part = part
        self._way = way_of(loader, part)
        self._home = self._strategy = strategy_for(loader, name, part)
        length = self._strategy.length
        if self._way == "own":
            tell_undivided(loader, name, part)
            length = longest_of(length)
        self._cap = limited(length, limit, name) if limit is not None else None
        self.batches = self._full = self._at_most(length)
        self._ended = False
        self.position = 0
        self.timed = False
        self.waited = 0.0
        self.epoch: int | None = None
        self._idled = 0  # batches of the pass in progress that only kept others company,
        self._idle = 0  # and those of the window in hand, where each process reads its own
        self._samples = 0  # of that window, over all processes
        self._mark: RngSnapshot | None = None  # of the pass in progress
        self._place: Position | None = None  # where the next pass begins, if not at the beginning
        self._over = False  # whether the pass in progress was given up
        self._drained = False  # whether its loader has come to its end
        self._wake = False  # whether the loader had workers that it did not have to start
        if self.batches == 0:
            why = why_empty(loader, part.count)
            raise ValueError(f"{name} is empty: it has no batches{why}, expected at least one")
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
    def taken_up_at(self) -> int:
        """The windows of the pass that an earlier run has had, if the next one goes on with it."""
        goes_on = self._place is not None and not self._over
        return self.position // self.accumulate if goes_on else 0

    @property
    def exhausted(self) -> bool:
        """Whether the pass in progress has handed out every batch it will, as far as known."""
        if self._ended or self.batches is None:
            return self._ended
        left = self.batches - self.position - self._idled
        return left < (self.accumulate if self.last_window == "drop" else 1)

    @property
    def ended(self) -> bool:
        """Whether the pass in progress has come to its end."""
        return self._ended

    @property
    def place(self) -> tuple[int, bool, bool, int]:
        """Where the pass in progress is; set it back to hand out the last window once more."""
        return self.position, self._drained, self._ended, self._idled

    @place.setter
    def place(self, place: tuple[int, bool, bool, int]) -> None:
        self.position, self._drained, self._ended, self._idled = place

    @property
    def idle(self) -> int:
        """How many batches at the end of the window in hand only keep other processes company.

        Their samples count elsewhere or have counted before: here they weigh nothing.
        """
        if self._part.count == 1:
            return 0
        return self._idle if self._way == "own" else self._strategy.idle(self.position)

    def whole(self, sizes: Sequence[int]) -> int:
        """The samples of the window in hand over all processes; ``sizes`` are those here.

        Every process calls it. Idle batches do not count, whatever size they are given.
        """
        if self._way == "own":
            return self._samples
        if self._way == "even":
            return sum(sizes) * self._part.count
        return self._strategy.whole(self.position, sizes)

    def in_order(self, parts: Sequence[Sequence[Any]]) -> list[Any]:
        """What all processes made of their windows, in the order of the data they share.

        Where each reads its own, what this one made.

        Args:
            parts: by process, a tree of tensors for each window that was not idle.
        """
        if self._way in ("alone", "own"):
            return list(parts[self._part.index])
        return in_order(parts, rows=getattr(self.loader, "batch_sampler", None) is not None)

    def generators(self) -> list[torch.Generator]:
        """The generators that the loader and its parts draw from, beside the global one."""
        return generators_of(self.loader)

    def end_pass(self) -> None:
        """The pass in progress is over, whatever is left of it: the next one begins anew."""
        self._over = True

    def state_dict(self) -> dict[str, Any]:
        """The position, as a tree of tensors, numbers and strings.

        In the middle of a pass it holds the random state at its beginning, too: the order of the
        samples follows from that.
        """
        given_up = self._over and not self.exhausted
        within = self._mark is not None and not self._ended and not given_up
        state: dict[str, Any] = {
            "position": self.position if within else 0,
            "loader": description_of(self._strategy, self._part.count),
            "own": states_of(self.generators()),
            "workers_run": int(self._wake or workers_run(self._strategy.reader)),
        }
        if self.epoch is not None:
            state["epoch"] = self.epoch
        if within and self._mark is not None:
            state["over"], state["drained"] = int(self._over), int(self._drained)
            state["begin"] = packed(self._mark.shared)
            state["own_begin"] = self._mark.own
            state["warm"] = int(self._mark.warm)
            if self._way == "own":
                state["idled"] = self._idled
        loader_state = self._strategy.state(self.position if within else None)
        if loader_state is not None:
            state["loader_state"] = loader_state
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the position of `state_dict`; the next pass begins there."""
        within = "begin" in state
        found = description_of(self._home, self._part.count)
        check_unchanged(self._name, state["loader"], found, within_pass=within)
        generators = self.generators()
        if len(generators) == len(state["own"]):
            set_states(generators, state["own"])
        self.position, self._ended = state["position"], False
        self.epoch = state.get("epoch")
        self._wake = bool(state["workers_run"])
        self._over = self._drained = False
        self._idled = state.get("idled", 0) if self._way == "own" else 0
        self._mark = self._place = None
        self._strategy, self.batches = self._home, self._full
        if within:
            self._over, self._drained = bool(state["over"]), bool(state["drained"])
            self._mark = RngSnapshot(
                unpacked(state["begin"]), state["own_begin"], bool(state["warm"])
            )
            workers = state["loader"].get("num_workers", 0)
            self._place = Position(self.position, self._mark, state["own"], workers)
        recut = within and is_recut(state["loader"], found)
        if recut and self._way == "alone":
            self._strategy = ShardedStrategy(self.loader, self._name, self._part, seed=0)
        self._strategy.load(state, self._place)
        if recut:
            self.batches = self._at_most(self._strategy.length)

    def __iter__(self) -> Iterator[list[Batch]]:
        """One pass, or what is left of it; `position` counts the batches handed out."""
        windows = self._windows()
        return windows if self._way != "own" else self._together(windows)

    def _windows(self) -> Iterator[list[Batch]]:
        source = self._begin()
        size = self.accumulate
        if self.timed:
            source = self._timed(source)
        window: list[Batch] = []
        for batch in source:
            window.append(batch)
            if len(window) == size:
                self.position += size
                yield window
                window = []
        self._drained = True
        if window and self.last_window == "flush":
            self.position += len(window)
            yield window
        if not self.position and self._way != "own":
            raise ValueError(
                f"{self._name} gave {len(window)} batches, not enough for a step: an iterator can "
                "be read only once, so pass a list or a DataLoader"
            )
        self._ended = True

    def _together(self, windows: Iterator[list[Batch]]) -> Iterator[list[Batch]]:
        """The same windows, and further ones for as long as another process has some."""
        while True:
            window = next(windows, [])
            found = together(window, self.position + self._idled, self._name, self._part)
            self._idle, self._samples = found.idle, found.samples
            self._idled += found.idle
            self._ended = not found.window
            if self._ended:
                return
            yield found.window

    def _begin(self) -> Iterable[Batch]:
        """The batches of the pass that begins."""
        place, self._place = self._place, None
        if self.epoch is not None:
            tell_epoch(self.loader, self.epoch)
        if self._way == "own":
            tell_part(self.loader, self._part.index, self._part.count)
        if place is not None:
            left: Iterable[Batch] = ()
            if not self._drained:
                left = self._capped(self._strategy.resumed(place), place.position)
            if not self._over:
                return left
            deque(left, maxlen=0)  # no batch of it is wanted, but its end may draw
        self.position = self._idled = 0
        self._ended = self._over = self._drained = False
        self._strategy, self.batches = self._home, self._full
        if self._wake:
            wake(self._strategy.reader, self.generators())
            self._wake = False
        self._mark = self._strategy.mark()
        return self._capped(self._strategy.fresh(self.epoch), 0)

    def _at_most(self, length: int | None) -> int | None:
        return length if length is None or self._cap is None else min(length, self._cap)

    def _capped(self, source: Iterable[Batch], begin: int) -> Iterable[Batch]:
        return source if self._cap is None else islice(source, max(0, self._cap - begin))

    def _timed(self, source: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches; `waited` grows by the seconds that each took to come."""
        began = perf_counter()
        batches = iter(source)  # which may start workers
        while True:
            batch = next(batches, _END)
            self.waited += perf_counter() - began
            if batch is _END:
                return
            yield batch
            began = perf_counter()


def val_feeders_of(
    loader: Loaders | None, limit: int | float | None, part: DataShard = _ALONE
) -> dict[str, BatchFeeder]:
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
    return {
        name: BatchFeeder(one, limit=limit, name=f"{name} loader", part=part)
        for name, one in named.items()
    }


def count_of(name: str, value: Any) -> int | None:
    """A number of epochs or steps, or None for no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
        raise ValueError(f"{name} is a whole number from 0, got {value!r}")
    return operator.index(value)


def take(loader: Iterable[Batch], limit: int | float) -> list[Batch]:
    """The first batches of a loader, so many or that share of them, as a list."""
    return list(islice(loader, limited(length_of(loader), limit, "train_loader")))


def _check_iterable(loader: Any, name: str) -> None:
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
