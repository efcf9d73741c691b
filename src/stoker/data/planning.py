"""What to know before a fit: the number of its steps, and the largest batch that fits."""

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

from stoker.core import dist
from stoker.core.errors import check_number
from stoker.core.out_of_memory import free_memory, is_out_of_memory
from stoker.core.types import Batch
from stoker.data.feeder import BatchFeeder, LastWindow, count_of
from stoker.data.sharding import DataShard


def total_steps(
    train_loader: Iterable[Batch],
    *,
    epochs: int,
    accumulate: int = 1,
    last_window: LastWindow = "flush",
    limit_train_batches: int | float | None = None,
    logical_ranks: int | None = None,
) -> int:
    """Return the number of updates that a `fit` with these arguments makes, for LR schedules.

        steps = data.total_steps(loader, epochs=3)
        scheduler = nn.lr.cosine(optimizer, steps, warmup_ratio=0.1)

    In a job of several processes whose data is sharded by the trainer, it joins the other
    processes, so that each counts its share. With logical ranks, pass their number: the steps do
    not depend on the processes.
    """
    dist.connect()
    shard = DataShard(dist.rank(), dist.world_size())
    if logical_ranks is not None:
        shard = DataShard(0, logical_ranks, 1)
    feeder = BatchFeeder(
        train_loader, accumulate, last_window=last_window, limit=limit_train_batches, shard=shard
    )
    if feeder.steps is None:
        raise ValueError(
            f"a {type(train_loader).__name__} without a length does not tell its steps: pass "
            "max_steps to fit(), and the same number to the schedule"
        )
    return feeder.steps * (count_of("epochs", epochs) or 0)


_attempts = itertools.count()
_PATIENCE = 60.0
"""Seconds for which a rank that has run out of memory waits to hear of the others."""


def find_batch_size(attempt: Callable[[int], Any], *, start: int = 1, largest: int = 65_536) -> int:
    """Return the largest batch size, doubled from ``start``, that does not run out of memory.

        size = data.find_batch_size(
            lambda size: trainer.fit(data.loader(dataset, size), fast_dev_run=2)
        )

    A ``fast_dev_run`` changes nothing, so the training that follows is the same as without it.
    Ranks agree on the size. If memory runs out on one of them while others wait for it in a
    collective, as with shards, it raises an error that names the size.

    Args:
        attempt: trains some steps with batches of this size. Errors other than running out of
            memory are raised.
        start: the first size; an error if it does not fit.
        largest: the last size to try.
    """
    for name, value in (("start", start), ("largest", largest)):
        check_number(name, value, integer=True)
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    found, size = 0, start
    while size <= largest and _fits(attempt, size, next(_attempts)):
        found, size = size, 2 * size
    if not found:
        raise ValueError(f"not even a batch of {start} fits into memory")
    return found


def _fits(attempt: Callable[[int], Any], size: int, number: int) -> bool:
    fits, begun = True, time.monotonic()
    try:
        attempt(size)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        fits = False
    free_memory()
    if dist.members() is not None:
        return bool(dist.all_reduce_max(0.0 if fits else 1.0)[0] == 0.0)
    # Other ranks may wait for this one in a collective, so it does not wait for them there.
    patience = None if fits else max(_PATIENCE, 2 * (time.monotonic() - begun))
    reports = dist.gather_reports(f"batch-size/{number}", "fits" if fits else "full", patience)
    waiting = [rank for rank, report in enumerate(reports) if report is None]
    if waiting and not fits:
        raise RuntimeError(
            f"rank {dist.rank()} has run out of memory with batches of {size}, while rank "
            f"{waiting[0]} waits for it in a collective: pass largest={max(size // 2, 1)}, so that "
            "all ranks finish every attempt"
        )
    return reports == ["fits"] * len(reports)
