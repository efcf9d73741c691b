"""`BatchFeeder`: the batches of a loader in accumulation windows, one window per step."""

import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from time import perf_counter
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from stoker.core import dist
from stoker.core.seed import preserve_rng
from stoker.core.types import Batch
from stoker.core.user_state import Entries, UserState
from stoker.data.dataloader import (
    generators_of,
    length_of,
    limited,
    roots_of,
    set_epoch,
    set_shard,
    start_workers,
    why_empty,
    workers_running,
)
from stoker.data.resume.loader_check import check_loader, is_resharded, properties_of
from stoker.data.resume.logical import DealtStrategy, Round, logical_strategy_for
from stoker.data.resume.position import Position
from stoker.data.resume.rng import generator_states, set_generator_states
from stoker.data.resume.strategies import ResumeStrategy, ShardedStrategy, strategy_for
from stoker.data.resume.stream_strategy import StreamStrategy
from stoker.data.resume.unsaved import report_unsaved
from stoker.data.sharding import (
    DataShard,
    ShardingMode,
    SyncedWindow,
    interleave,
    longest_of,
    sharding_mode,
    sync_window,
    warn_if_unsharded,
)
from stoker.data.streams.stream import Stream

LastWindow: TypeAlias = Literal["flush", "drop"]
Loaders: TypeAlias = Iterable[Batch] | Mapping[str, Iterable[Batch]]

_END = object()
_SINGLE = DataShard()


def _returning(shard: DataShard) -> Callable[[], DataShard]:
    return lambda: shard


class BatchFeeder:
    """Iterates over a loader any number of times, ``accumulate`` batches at a time.

    Args:
        loader: any iterable of batches, with or without a length.
        accumulate: the number of batches in a window; each window makes one step.
        last_window: what to do with a last window that has fewer batches: "flush" makes a smaller
            step of it, "drop" discards it.
        limit: the maximum number of batches per pass, or a fraction of them as a float.
        name: the name of the loader in messages.
        shard: the shard of the data that this process reads, or a function that returns it. Every
            process builds a feeder, and all hand out the same number of windows. With logical
            ranks the shard may change between two windows.

    Attributes:
        position: how far the pass in progress has got. Do not modify it.
        epoch: if set, each pass calls ``set_epoch`` with it, on the loader and its components.
        timed: whether to measure the time spent waiting for batches.
        waited: the seconds spent waiting for batches in all timed passes.

    After `load_state_dict` the next pass resumes the saved one, with the same bits. Restore the
    global random number generators before that pass starts. A dataset that draws random numbers in
    worker processes must be a `SeededDataset`.
    """

    def __init__(
        self,
        loader: Iterable[Batch],
        accumulate: int = 1,
        *,
        last_window: LastWindow = "flush",
        limit: int | float | None = None,
        name: str = "train_loader",
        shard: DataShard | Callable[[], DataShard] = _SINGLE,
    ) -> None:
        _check_iterable(loader, name)
        self._find_shard = _returning(shard) if isinstance(shard, DataShard) else shard
        self._shard = here = self._find_shard()
        check_window(accumulate, last_window)
        self.loader = loader
        self.accumulate = accumulate
        self.last_window = last_window
        self.epoch: int | None = None
        self.timed = False
        self.waited = 0.0
        self.position = Position()
        self._name = name
        self._mode = sharding_mode(loader, here)
        self._is_logical = here.logical_ranks is not None
        self._synced = self._mode is ShardingMode.PER_RANK and not self._is_logical
        self._default_strategy = self._strategy = _strategy(loader, name, here)
        if self._synced:
            warn_if_unsharded(loader, name, here)
            self._strategy.length = longest_of(self._strategy.length)
        self._max_batches = None if limit is None else limited(self._strategy.length, limit, name)
        self._window = SyncedWindow()  # the current one, if windows are synced
        self._rounds: list[Round] = []  # those of the current window, with logical ranks
        self._rest: Iterator[Round] = iter(())  # those of the pass that follow
        self.window: list[Batch] = []  # the current one, with logical ranks
        self.user_state: UserState | None = None
        self._restored: Entries = []  # of `user_state`
        self._restart_workers = False  # whether persistent workers ran when the state was saved
        if self.batches == 0:
            reason = why_empty(loader, here.world_size)
            raise ValueError(f"{name} is empty: it has no batches{reason}, expected at least one")
        if self.steps == 0:
            raise ValueError(
                f"{name} has {self.batches} batches, too few for a step of {accumulate}: use "
                "last_window='flush' or a smaller accumulate"
            )

    def another_pass(self) -> "BatchFeeder":
        """Return a feeder for a pass over the same data, batch by batch."""
        shard = self._find_shard
        return BatchFeeder(self.loader, limit=self._max_batches, name=self._name, shard=shard)

    @property
    def batches(self) -> int | None:
        """The number of batches per pass; None if the loader has no length."""
        length, limit = self._strategy.length, self._max_batches
        return length if length is None or limit is None else min(length, limit)

    @property
    def steps(self) -> int | None:
        """The number of windows per pass; None if the loader has no length."""
        if self.batches is None:
            return None
        full, rest = divmod(self.batches, self.accumulate)
        return full + (1 if rest and self.last_window == "flush" else 0)

    @property
    def first_step(self) -> int:
        """The index of the first window of the next pass: above 0 if it resumes a saved one."""
        resumes = self.position.resume_point is not None and not self.position.abandoned
        return self.position.batches // self.accumulate if resumes else 0

    @property
    def exhausted(self) -> bool:
        """Whether the pass in progress has no further window, as far as known."""
        position, batches = self.position, self.batches
        if position.ended or batches is None:
            return position.ended
        left = batches - position.batches - position.padding
        return left < (self.accumulate if self.last_window == "drop" else 1)

    @property
    def padding(self) -> int:
        """The number of padding batches at the end of the current window.

        Padding keeps the ranks in lockstep. It repeats data that counts elsewhere, so it has
        weight 0.
        """
        if self._shard.world_size == 1 or self._is_logical:
            return 0
        if self._synced:
            return self._window.padding
        return self._strategy.padding(self.position.batches)

    @property
    def rounds(self) -> range:
        """With logical ranks: the numbers of the micro-batches of each in the current window."""
        return range(self.position.batches - len(self._rounds), self.position.batches)

    def global_size(self, sizes: Sequence[int]) -> int:
        """Return the number of samples in the current window on all ranks, without padding.

        All ranks must call it.

        Args:
            sizes: the sizes of this rank's batches in the window.
        """
        if self._shard.world_size == 1:
            return sum(sizes)
        if self._is_logical:
            return sum(one.samples for one in self._rounds)
        if self._synced:
            return self._window.samples
        if self._mode is ShardingMode.EVEN:
            return sum(sizes) * self._shard.world_size
        return self._strategy.global_size(self.position.batches, sizes)

    def interleave(self, outputs: Sequence[Sequence[Any]]) -> list[Any]:
        """Merge the outputs of all ranks in the order of the data.

        If each rank reads its own loader, return the outputs of this rank.

        Args:
            outputs: for each rank, a tree of tensors per window, without padding.
        """
        if self._synced or self._mode is ShardingMode.SINGLE:
            return list(outputs[self._shard.rank])
        is_sharded = self._mode is ShardingMode.SHARDED
        by_row = is_sharded and getattr(self.loader, "batch_sampler", None) is not None
        return interleave(outputs, by_row=by_row)

    def generators(self) -> list[torch.Generator]:
        """Return the generators of the loader and its components, without the global one."""
        return generators_of(self.loader)

    def track_state(self, known: UserState | None = None) -> None:
        """Save the state of the loader that has no ``state_dict`` too, from now on.

        Call it when training begins, after hooks may have prepared the data.

        Args:
            known: the state that another feeder of the same loader tracks.
        """
        if self.user_state is None:
            self.user_state = known or UserState(
                lambda: roots_of(self.loader, self._name), is_data=True
            )
            self._default_strategy.user_state = self._strategy.user_state = self.user_state
        if known is None:
            self.user_state.begin(self._restored)

    def report_unsaved(self) -> None:
        """Log a warning for state of the loader that cannot be saved, when it is tracked."""
        if self.user_state is not None:
            report_unsaved(self.loader, self._name, self.user_state)

    def restore_state(self) -> None:
        """Restore the loaded state of a loader between two passes, after hooks have begun."""
        if self.user_state is not None and self._restored and self.position.resume_point is None:
            self.user_state.restore(self._restored)

    def end_pass(self) -> None:
        """Discard the rest of the pass in progress: the next pass starts from the beginning."""
        self.position.abandoned = True

    def rewind(self, position: Position) -> None:
        """Go back to an earlier position in this pass, to save the state there.

        Args:
            position: a copy of `position`, made before the windows that are undone.
        """
        self.position = position

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data, as a tree of tensors, numbers and strings.

        Within a pass it includes the random state at the start of the pass, which determines the
        order of the samples.
        """
        position = self.position
        discarded = position.abandoned and not self.exhausted
        within_pass = position.start is not None and not position.ended and not discarded
        state: dict[str, Any] = {
            "loader": properties_of(self._strategy, self._shard.world_size),
            "generators": generator_states(self.generators()),
            "workers_running": int(self._restart_workers or workers_running(self._strategy.reader)),
        }
        if self.epoch is not None:
            state["epoch"] = self.epoch
        if self.user_state is not None:
            state["user_state"] = self.user_state.capture()
        if within_pass:
            state["position"] = position.state_dict()
        loader_state = self._strategy.state(position.batches if within_pass else None)
        if loader_state is not None:
            state["loader_state"] = loader_state
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position that `state_dict` returned; the next pass starts there."""
        saved, within_pass = state["loader"], "position" in state
        generators = self.generators()
        if len(generators) == len(state["generators"]):
            set_generator_states(generators, state["generators"])
        self._restored = state.get("user_state", [])
        if "user_state" in state:
            self.track_state(self.user_state)
            assert self.user_state is not None
            self.user_state.restore(self._restored)
        found = properties_of(self._default_strategy, self._shard.world_size)  # may have grown
        check_loader(self._name, saved, found, within_pass=within_pass)
        self.epoch = state.get("epoch")
        self._restart_workers = bool(state["workers_running"])
        self._strategy, self.position = self._default_strategy, Position()
        if within_pass:
            workers = saved.get("num_workers", 0)
            self.position = Position.from_state_dict(
                state["position"], state["generators"], workers, self._restored
            )
            if not self._synced:
                self.position.padding = 0
            if self._mode is ShardingMode.SINGLE and is_resharded(saved, found):
                self._strategy = ShardedStrategy(self.loader, self._name, self._shard, seed=0)
                self._strategy.user_state = self.user_state
        self._strategy.load(state, self.position.resume_point)

    def __iter__(self) -> Iterator[list[Batch]]:
        """Yield the windows of a new pass, or the rest of a restored one."""
        if self._is_logical:
            return self._logical_windows()
        windows = self._windows()
        return self._in_lockstep(windows) if self._synced else windows

    def _logical_windows(self) -> Iterator[list[Batch]]:
        """Yield the batches of this process's logical ranks; a window may have none of them."""
        self._reshard()
        self._begin_rounds()
        while True:
            if self.is_outdated and not self._reshard():
                self._begin_rounds()
            taken = list(islice(self._rest, self.accumulate))
            if not taken or (len(taken) < self.accumulate and self.last_window == "drop"):
                break
            self._hand_out(taken)
            yield self.window
        position = self.position
        if not position.batches:
            raise ValueError(f"{self._name} yielded no batches: expected at least one per pass")
        position.drained = position.ended = True

    def _begin_rounds(self) -> None:
        source: Iterable[Any] = self._begin()
        self._rest = iter(self._timed(source) if self.timed else source)

    def _hand_out(self, rounds: list[Round]) -> None:
        """Make these rounds the current window."""
        self._rounds = rounds
        self.position.batches += len(rounds)
        self.position.drained = rounds[-1].is_last
        self.window = [batch for one in rounds for batch in one.batches]

    @property
    def is_outdated(self) -> bool:
        """Whether this process has other logical ranks now than when it read the last window."""
        return self._is_logical and self._find_shard() != self._shard

    def repeat(self) -> list[Batch]:
        """Return the current window for the logical ranks that this process has now."""
        rounds, position = self._rounds, self.position.copy()
        position.batches -= len(rounds)
        position.drained = position.ended = False
        if self.is_outdated:
            self.rewind(position)
            with preserve_rng(*self.generators()):
                in_place = self._reshard()
                if in_place:
                    assert isinstance(self._strategy, DealtStrategy)
                    rounds = [self._strategy.dealt(one) for one in rounds]
                else:
                    self._begin_rounds()
                    rounds = list(islice(self._rest, len(rounds)))
            self._hand_out(rounds)
        return self.window

    def _reshard(self) -> bool:
        """Read the shard that this process has now; return False if the pass must begin again."""
        shard = self._find_shard()
        if shard == self._shard or self._default_strategy.reshard(shard):
            self._shard = shard
            return True
        state = self.state_dict()
        self._shard = shard
        with dist.alone():  # the state has what ranks would agree on
            self._default_strategy = _strategy(self.loader, self._name, shard)
        self._default_strategy.user_state = self.user_state
        self.load_state_dict(state)
        return False

    def _windows(self) -> Iterator[list[Batch]]:
        source = self._begin()
        position, size = self.position, self.accumulate
        if self.timed:
            source = self._timed(source)
        window: list[Batch] = []
        for batch in source:
            window.append(batch)
            if len(window) == size:
                position.batches += size
                yield window
                window = []
        position.drained = True
        if window and self.last_window == "flush":
            position.batches += len(window)
            yield window
        if not position.batches and not self._synced:
            raise ValueError(
                f"{self._name} yielded {len(window)} batches, too few for a step: an iterator can "
                "be read only once, so pass a list or a DataLoader"
            )
        position.ended = True

    def _in_lockstep(self, windows: Iterator[list[Batch]]) -> Iterator[list[Batch]]:
        """Yield the windows, padded, for as long as any rank has one."""
        while True:
            window = next(windows, [])
            position = self.position
            handed_out = position.batches + position.padding
            self._window = sync_window(window, handed_out, self._name, self._shard)
            position.padding += self._window.padding
            position.ended = not self._window.batches
            if position.ended:
                return
            yield self._window.batches

    def _begin(self) -> Iterable[Batch]:
        """Start a pass, or resume the restored one, and return its batches."""
        if self.epoch is not None:
            set_epoch(self.loader, self.epoch)
        if self._synced:
            set_shard(self.loader, self._shard.rank, self._shard.world_size)
        point, self.position.resume_point = self.position.resume_point, None
        if point is not None:
            rest: Iterable[Batch] = ()
            if self.position.drained and self.user_state is not None:
                self.user_state.restore(point.user_state)
            if not self.position.drained:
                rest = self._limited(self._strategy.resume(point), point.batches)
            if not self.position.abandoned:
                return rest
            deque(rest, maxlen=0)  # its batches are discarded, but its end may draw
        self._strategy = self._default_strategy
        if self._restart_workers:
            start_workers(self._strategy.reader, self.generators())
            self._restart_workers = False
        start = self._strategy.snapshot()
        if self.user_state is not None:
            start = replace(start, user_state=self.user_state.capture())
        self.position = Position(start=start)
        return self._limited(self._strategy.start(self.epoch), 0)

    def _limited(self, source: Iterable[Batch], consumed: int) -> Iterable[Batch]:
        limit = self._max_batches
        return source if limit is None else islice(source, max(0, limit - consumed))

    def _timed(self, source: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the same batches, and add the seconds spent waiting for each to `waited`."""
        began = perf_counter()
        batches = iter(source)  # this may start workers
        while True:
            batch = next(batches, _END)
            self.waited += perf_counter() - began
            if batch is _END:
                return
            yield batch
            began = perf_counter()


def val_feeders_of(
    loader: Loaders | None,
    limit: int | float | None,
    shard: DataShard | Callable[[], DataShard] = _SINGLE,
) -> dict[str, BatchFeeder]:
    """Return a feeder for each validation loader, by prefix of its results: "val", "val/<name>"."""
    if loader is None:
        return {}
    if isinstance(loader, Mapping):
        if not loader:
            raise ValueError("val_loader is an empty mapping: expected loaders by name, or None")
        named: dict[str, Iterable[Batch]] = {f"val/{name}": one for name, one in loader.items()}
    elif _are_loaders(loader):
        raise TypeError(
            f"val_loader is a {type(loader).__name__} of loaders, expected loaders by name, such "
            "as {'clean': loader, 'noisy': loader}"
        )
    else:
        named = {"val": loader}
    return {
        name: BatchFeeder(one, limit=limit, name=f"{name} loader", shard=shard)
        for name, one in named.items()
    }


def check_window(accumulate: int, last_window: LastWindow) -> None:
    """Check how batches are grouped into steps."""
    if type(accumulate) is not int or accumulate < 1:
        raise ValueError(f"accumulate must be an integer from 1, got {accumulate!r}")
    if last_window not in ("flush", "drop"):
        raise ValueError(f"last_window must be 'flush' or 'drop', got {last_window!r}")


def count_of(name: str, value: Any) -> int | None:
    """Return a limit on epochs or steps as an int; None means no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
        raise ValueError(f"{name} must be an integer from 0, got {value!r}")
    return operator.index(value)


def take(loader: Iterable[Batch], limit: int | float) -> list[Batch]:
    """Return the first ``limit`` batches of a loader, or that fraction of them, as a list."""
    return list(islice(loader, limited(length_of(loader), limit, "train_loader")))


def _strategy(loader: Any, name: str, shard: DataShard) -> ResumeStrategy:
    if shard.logical_ranks is not None:
        return logical_strategy_for(loader, name, shard)
    if isinstance(loader, Stream):
        is_sharded = sharding_mode(loader, shard) is ShardingMode.SHARDED
        return StreamStrategy(loader, name, shard if is_sharded else _SINGLE)
    return strategy_for(loader, name, shard)


def _are_loaders(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], DataLoader)


def _check_iterable(loader: Any, name: str) -> None:
    expected = "expected a DataLoader or another iterable of batches"
    if isinstance(loader, nn.Module):  # some are iterable
        raise TypeError(
            f"{name} is a {type(loader).__name__}, {expected}: the model belongs into "
            "Engine(model, optimizer, criterion)"
        )
    if isinstance(loader, Tensor | np.ndarray):
        raise TypeError(
            f"{name} is an array of shape {list(loader.shape)}, {expected}, such as "
            "data.loader((x, y), 32) (to predict a single batch, pass a tensor)"
        )
    if _are_loaders(loader):
        raise TypeError(
            f"{name} is a {type(loader).__name__} of loaders, expected one: join their datasets "
            "with torch.utils.data.ConcatDataset"
        )
    if not isinstance(loader, Iterable) or isinstance(loader, str | bytes | Mapping):
        is_plain = loader is None or isinstance(loader, int | float | str)
        found = repr(loader) if is_plain else f"of type {type(loader).__name__}"
        raise TypeError(f"{name} is {found}, {expected}{_meant(loader, name)}")


def _meant(loader: Any, name: str) -> str:
    """Return what was probably meant by a value that is no loader, as the end of a message."""
    if isinstance(loader, int) and name != "data":
        return f" (a number of epochs is passed by name: epochs={loader})"
    if hasattr(loader, "__getitem__") and not isinstance(loader, type):
        return ", such as DataLoader(dataset, batch_size=32)"
    if isinstance(loader, type) or callable(loader):
        return ": did you mean to call it?"
    return ""
