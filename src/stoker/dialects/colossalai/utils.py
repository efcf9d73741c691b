"""Timers, data loaders, files of weights, and questions about this process."""

import sys
from functools import partial, partialmethod
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as _checkpoint
from torch.utils.data import DataLoader, Dataset

from stoker import CheckpointError
from stoker.core import dist
from stoker.core.timers import MultiTimer as Timers
from stoker.core.timers import Timer as _Watch
from stoker.core.tree import is_sharded
from stoker.data import unsharded
from stoker.dialects import torch_files
from stoker.dialects.colossalai.context import global_context as gpc
from stoker.dialects.colossalai.ranks import ParallelMode
from stoker.engine.checks import resolve_device
from stoker.hooks.memory import describe_memory


class Timer(_Watch):
    """A timer that synchronizes with the accelerator and keeps a history."""

    has_history = property(lambda self: self.count > 0, doc="Whether the history has an entry.")
    get_elapsed_time = _Watch.elapsed

    def start(self) -> None:
        """Start the timer."""
        synchronize()
        super().start()

    def stop(self, keep_in_history: bool = False) -> float:  # type: ignore[override]
        """Stop the timer and return its seconds."""
        synchronize()
        return super().stop(keep=keep_in_history)

    def lap(self) -> float:
        """Return the elapsed seconds and restart the timer."""
        seconds = self.stop()
        super().start()
        return seconds

    get_history_mean = partialmethod(getattr, "mean")
    get_history_sum = partialmethod(getattr, "total")


class MultiTimer(Timers):
    """Timers by case-insensitive name, which can be switched off together."""

    is_on = property(lambda self: self.on, doc="Whether the timers are on.")

    def __init__(self, on: bool = True) -> None:
        super().__init__(Timer, str.lower, on=on)

    def set_status(self, mode: bool) -> None:
        """Switch the timers on or off."""
        self.on = mode

    def stop(self, name: str, keep_in_history: bool = False) -> float | None:  # type: ignore[override]
        """Stop the timer of that name and return its seconds."""
        return self.get_timer(name).stop(keep_in_history) if self.on else None

    def get_timer(self, name: str) -> Timer:
        """Return the timer of that name."""
        if name not in self:
            raise KeyError(f"no timer {name!r} was started (timers: {[n for n, _ in self]})")
        timer: Timer = self[name]
        return timer


def get_dataloader(
    dataset: Dataset[Any],
    shuffle: bool = False,
    seed: int = 1024,
    add_sampler: bool = True,
    drop_last: bool = False,
    pin_memory: bool = False,
    num_workers: int = 0,
    *,
    add_sampler_if_possible: bool | None = None,
    **kwargs: Any,
) -> DataLoader[Any]:
    """Return a DataLoader; ``kwargs`` are further arguments such as ``batch_size``.

    With several processes each reads its shard, unless ``add_sampler`` is False
    (``add_sampler_if_possible`` is its older name). ``seed`` determines the order of every pass.
    """
    if add_sampler_if_possible is not None:
        add_sampler = add_sampler_if_possible
    kwargs |= {"drop_last": drop_last, "pin_memory": pin_memory, "num_workers": num_workers}
    order = torch.Generator().manual_seed(seed)
    loader = DataLoader(dataset, shuffle=shuffle, generator=order, **kwargs)
    return loader if add_sampler else unsharded(loader)


def save_checkpoint(
    file: str | Path,
    epoch: int,
    model: nn.Module,
    optimizer: Any = None,
    lr_scheduler: Any = None,
    **kwargs: Any,
) -> None:
    """Save weights, and the states of optimizer and scheduler, to a file. All ranks must call it.

    `SaveCheckpointHook` saves the complete state of a run instead. ``kwargs`` are those of
    `torch.save`.
    """
    weights = model.state_dict()
    if any(is_sharded(value) for value in weights.values()):
        raise CheckpointError("save_checkpoint got a sharded model: use SaveCheckpointHook instead")
    parts = {"optimizer": optimizer, "lr_scheduler": lr_scheduler}
    states = {name: one.state_dict() for name, one in parts.items() if one is not None}
    count = gpc.pipeline_parallel_size
    every = dist.all_gather_object((weights, states)) if count > 1 else [(weights, states)]
    stages = every[:: len(every) // count]
    joined = {name: value for stage in stages for name, value in stage[0].items()}
    if len(joined) < sum(len(stage[0]) for stage in stages):
        raise CheckpointError(
            "several pipeline stages have weights of one name: pass engine.model to save_checkpoint"
        )
    saved = {"epoch": epoch, "model": joined}
    for name in states:
        found = [stage[1][name] for stage in stages]
        saved[name] = found if len(found) > 1 else found[0]
    torch_files.write(Path(file), saved, **kwargs)
    dist.barrier()


def load_checkpoint(
    file: str | Path,
    model: nn.Module,
    optimizer: Any = None,
    lr_scheduler: Any = None,
    strict: bool = True,
) -> int:
    """Restore what `save_checkpoint` has saved, and return its epoch; no code in it is run."""
    saved = torch_files.read(Path(file))
    weights = saved["model"]
    if gpc.pipeline_parallel_size > 1:
        own = model.state_dict()
        weights = {name: value for name, value in weights.items() if name in own}
    model.load_state_dict(weights, strict=strict)
    stage = dist.rank() // (dist.world_size() // gpc.pipeline_parallel_size)
    for name, one in {"optimizer": optimizer, "lr_scheduler": lr_scheduler}.items():
        if one is not None and name in saved:
            one.load_state_dict(saved[name][stage] if type(saved[name]) is list else saved[name])
    return int(saved.get("epoch", -1))


def print_rank_0(msg: str, logger: Any = None) -> None:
    """Print or log a message on rank 0."""
    show = partial(print, flush=True) if logger is None else logger.info
    if dist.is_main():
        show(msg)


def report_memory_usage(message: str, logger: Any = None, report_cpu: bool = False) -> None:
    """Print or log the memory in use on rank 0."""
    print_rank_0(f"{message}: {describe_memory(get_current_device(), host=report_cpu)}", logger)


def checkpoint(function: Any, *args: Any, use_reentrant: bool = False, **kwargs: Any) -> Any:
    """Recompute activations of a function in backward; ``args`` may begin with ``offload``."""
    offload, *rest = args if args and isinstance(args[0], bool) else (False, *args)
    if offload:
        raise ValueError("activations cannot be offloaded: use activation_offload=False")
    return _checkpoint(function, *rest, use_reentrant=use_reentrant, **kwargs)


free_port = dist.free_port
is_dp_rank_0 = partial(gpc.is_first_rank, ParallelMode.DATA)
is_tp_rank_0 = partial(gpc.is_first_rank, ParallelMode.TENSOR)
is_no_pp_or_last_stage = partial(gpc.is_last_rank, ParallelMode.PIPELINE)


def _is_split(mode: ParallelMode) -> bool:
    return gpc.get_world_size(mode) > 1


is_using_ddp = partial(_is_split, ParallelMode.DATA)
is_using_pp = partial(_is_split, ParallelMode.PIPELINE)


def get_current_device() -> torch.device:
    """Return the device of this process."""
    return resolve_device("auto")


def empty_cache() -> None:
    """Free cached memory of the accelerator."""
    if torch.accelerator.is_available():  # untested: CI has no accelerator
        torch.accelerator.empty_cache()


def get_accelerator() -> ModuleType:
    """Return what has `get_current_device`, `synchronize` and `empty_cache`: this module."""
    return sys.modules[__name__]


def synchronize() -> None:
    """Wait for the accelerator."""
    if torch.accelerator.is_available():  # untested: CI has no accelerator
        torch.accelerator.synchronize()
