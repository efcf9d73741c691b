"""Timers, data loaders, files of weights, and questions about this process."""

import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as _checkpoint
from torch.utils.data import DataLoader, Dataset

from stoker import CheckpointError
from stoker.core import dist
from stoker.core.timers import Timer as _Watch
from stoker.core.tree import is_sharded
from stoker.data import unsharded
from stoker.dialects.colossalai.context import global_context as gpc
from stoker.dialects.colossalai.ranks import ParallelMode
from stoker.engine.checks import resolve_device
from stoker.storage.local import atomic_file


class Timer(_Watch):
    """A timer that synchronizes with the accelerator and keeps a history."""

    has_history = property(lambda self: self.count > 0, doc="Whether the history has an entry.")
    get_elapsed_time = _Watch.elapsed

    def start(self) -> None:
        """Start the timer."""
        _synchronize()
        super().start()

    def stop(self, keep_in_history: bool = False) -> float:  # type: ignore[override]
        """Stop the timer and return its seconds."""
        _synchronize()
        return super().stop(keep=keep_in_history)

    def lap(self) -> float:
        """Return the elapsed seconds and restart the timer."""
        seconds = self.stop()
        super().start()
        return seconds

    def get_history_mean(self) -> float:
        """Return the mean of the history."""
        return self.mean

    def get_history_sum(self) -> float:
        """Return the sum of the history."""
        return self.total


class MultiTimer:
    """Timers by case-insensitive name, which can be switched off together."""

    def __init__(self, on: bool = True) -> None:
        self._on = on
        self._timers: dict[str, tuple[str, Timer]] = {}

    @property
    def is_on(self) -> bool:
        """Whether the timers are on."""
        return self._on

    def set_status(self, mode: bool) -> None:
        """Switch the timers on or off."""
        self._on = mode

    def start(self, name: str) -> None:
        """Start the timer of that name, and create it if needed."""
        if self._on:
            self._timers.setdefault(name.lower(), (name, Timer()))[1].start()

    def stop(self, name: str, keep_in_history: bool = False) -> float | None:
        """Stop the timer of that name and return its seconds."""
        return self.get_timer(name).stop(keep_in_history) if self._on else None

    def get_timer(self, name: str) -> Timer:
        """Return the timer of that name."""
        if name.lower() not in self._timers:
            raise KeyError(f"no timer {name!r} was started (timers: {[n for n, _ in self]})")
        return self._timers[name.lower()][1]

    def reset(self, name: str | None = None) -> None:
        """Reset one timer, or all."""
        for timer in [self.get_timer(name)] if name is not None else [t for _, t in self]:
            timer.reset()

    def __iter__(self) -> Iterator[tuple[str, Timer]]:
        return iter(self._timers.values())


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
    loader = DataLoader(
        dataset,
        shuffle=shuffle,
        generator=torch.Generator().manual_seed(seed),
        drop_last=drop_last,
        pin_memory=pin_memory,
        num_workers=num_workers,
        **kwargs,
    )
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
    stages = _by_stage((weights, states))
    joined = {name: value for stage in stages for name, value in stage[0].items()}
    if len(joined) < sum(len(stage[0]) for stage in stages):
        raise CheckpointError(
            "several pipeline stages have weights of one name: pass engine.model to save_checkpoint"
        )
    saved = {"epoch": epoch, "model": joined}
    for name in states:
        found = [stage[1][name] for stage in stages]
        saved[name] = found if len(found) > 1 else found[0]
    if dist.is_main():
        with atomic_file(Path(file)) as aside:
            torch.save(saved, aside, **kwargs)
    dist.barrier()


def load_checkpoint(
    file: str | Path,
    model: nn.Module,
    optimizer: Any = None,
    lr_scheduler: Any = None,
    strict: bool = True,
) -> int:
    """Restore what `save_checkpoint` has saved, and return its epoch; no code in it is run."""
    saved = torch.load(file, map_location="cpu", weights_only=True)
    weights = saved["model"]
    if gpc.pipeline_parallel_size > 1:
        own = model.state_dict()
        weights = {name: value for name, value in weights.items() if name in own}
    model.load_state_dict(weights, strict=strict)
    stage = dist.rank() // (dist.world_size() // gpc.pipeline_parallel_size)
    for name, one in {"optimizer": optimizer, "lr_scheduler": lr_scheduler}.items():
        if one is not None and name in saved:
            states = saved[name]
            one.load_state_dict(states[stage] if isinstance(states, list) else states)
    return int(saved.get("epoch", -1))


def _by_stage(value: Any) -> list[Any]:
    """Return the values of all pipeline stages."""
    stages = gpc.pipeline_parallel_size
    found = dist.all_gather_object(value) if stages > 1 else [value]
    return found[:: len(found) // stages]


def print_rank_0(msg: str, logger: Any = None) -> None:
    """Print or log a message on rank 0."""
    if dist.is_main():
        if logger is None:
            print(msg, flush=True)
        else:
            logger.info(msg)


def checkpoint(
    function: Any, activation_offload: bool, *args: Any, use_reentrant: bool = True
) -> Any:
    """Call a function whose activations are computed again in backward."""
    if activation_offload:
        raise ValueError("activations cannot be offloaded: pass activation_offload=False")
    return _checkpoint(function, *args, use_reentrant=use_reentrant)


def free_port() -> int:
    """Return a port that is free on this machine."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


def ensure_path_exists(filename: str | Path) -> None:
    """Create the folder of a file."""
    Path(filename).parent.mkdir(parents=True, exist_ok=True)


def conditional_context(context_manager: Any, enable: bool = True) -> AbstractContextManager[Any]:
    """Return the context manager if enabled."""
    return context_manager if enable else nullcontext()


def is_dp_rank_0() -> bool:
    """Return whether this process has the first shard of the data."""
    return gpc.is_first_rank(ParallelMode.DATA)


def is_tp_rank_0() -> bool:
    """Return whether this process has the first part of each layer."""
    return gpc.is_first_rank(ParallelMode.TENSOR)


def is_no_pp_or_last_stage() -> bool:
    """Return whether this process has outputs and losses."""
    return not is_using_pp() or gpc.is_last_rank(ParallelMode.PIPELINE)


def is_using_ddp() -> bool:
    """Return whether several processes read the data."""
    return bool(gpc.data_parallel_size > 1)


def is_using_pp() -> bool:
    """Return whether the model is in several pipeline stages."""
    return bool(gpc.pipeline_parallel_size > 1)


def get_current_device() -> torch.device:
    """Return the device of this process."""
    return resolve_device("auto")


def set_to_cuda(models: Any) -> Any:
    """Move a module, or a list of modules, to the device of this process."""
    if isinstance(models, list):
        return [set_to_cuda(one) for one in models]
    return models.to(get_current_device())


def synchronize() -> None:
    """Wait for the accelerator."""
    _synchronize()


def empty_cache() -> None:
    """Free cached memory of the accelerator."""
    if torch.accelerator.is_available():  # untested: CI has no accelerator
        torch.accelerator.empty_cache()


def report_memory_usage(message: str, logger: Any = None, report_cpu: bool = False) -> None:
    """Log the peak memory of this process."""
    from stoker.hooks.memory import host_peak_gib

    host = host_peak_gib()
    text = "unknown" if host is None else f"host at most {host * 1024:.1f} MB"
    if torch.accelerator.is_available():  # untested: CI has no accelerator
        peak = torch.accelerator.max_memory_allocated() / 2**20
        text = f"accelerator at most {peak:.1f} MB, {text}"
    print_rank_0(f"{message}: memory {text}", logger)


class _Accelerator:
    """The device of this process, as later versions name it."""

    get_current_device = staticmethod(get_current_device)
    synchronize = staticmethod(synchronize)
    empty_cache = staticmethod(empty_cache)


def get_accelerator() -> _Accelerator:
    """Return the device of this process and what can be done with it."""
    return _Accelerator()


def _synchronize() -> None:
    if torch.accelerator.is_available():  # untested: CI has no accelerator
        torch.accelerator.synchronize()
