"""What two processes do in the tests of `multiprocess/`; each returns plain values."""

import math
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from stoker import Engine, Output, Trainer, hooks
from stoker.core.log import get_logger
from stoker.events import JsonLines
from support.pool import pool
from support.toys import batches, engine, net, sgd, trainer


def found_by_two(folder: Path, home: str) -> list[dict[str, Any]]:
    """What two processes on gloo find when they make every check of the module ``home``."""
    return pool().run(2, made_checks, str(folder), home)


def made_checks(folder: str, home: str) -> dict[str, Any]:
    checks = import_module(home).CHECKS
    return {check.__name__: check(dist.get_rank(), Path(folder)) for check in checks}


def uneven_shards(rank: int, folder: Path) -> Any:
    """Rank 0 has one batch of 2, rank 1 three batches of 4, with losses known by hand."""
    shard = [(torch.zeros(2, 4), 1.0)] if rank == 0 else [(torch.zeros(4, 4), 2.0), *ONES * 2]
    step = lambda e, b: Output(loss=e(b[0]).sum() * 0 + b[1], weight=len(b[0]))
    run = Trainer(engine(), [hooks.Loss()], step=step)
    return run.evaluate(shard)["val/loss"]


ONES = [(torch.zeros(4, 4), 1.0)]


def accuracy_over_both(rank: int, folder: Path) -> Any:
    model = net()
    run = Trainer(Engine(model, sgd(model), nn.CrossEntropyLoss()), [hooks.Metrics("accuracy")])
    mine = batches()[:2] if rank == 0 else batches()[2:]
    return run.evaluate(mine)["val/accuracy"]


def a_nan_on_one_rank(rank: int, folder: Path) -> Any:
    data = batches(20)
    if rank == 1:
        data[2] = (data[2][0] * math.nan, data[2][1])
    run = trainer(hooks.NaNGuard())
    run.fit(data, epochs=1)
    return run.run.step


def files_of_a_run(rank: int, folder: Path) -> Any:
    writers = [
        hooks.Loss(),
        hooks.Write(JsonLines(), every=1),
        hooks.LogFile(),
        hooks.SaveWeights(),
    ]
    run = Trainer(engine(), writers, run_dir=folder / "run")
    dist.barrier()
    run.fit(batches(), batches(8), epochs=1)
    get_logger().info("said by one")
    dist.barrier()
    return sorted(path.name for path in (folder / "run").iterdir())


CHECKS = [uneven_shards, accuracy_over_both, a_nan_on_one_rank, files_of_a_run]
