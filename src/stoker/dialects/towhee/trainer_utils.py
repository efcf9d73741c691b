"""Helpers of Towhee's trainer that scripts import: seeds, devices, processes, file names."""

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stoker.core import dist
from stoker.core.seed import seed_all
from stoker.core.tree import map_tensors
from stoker.engine import unwrap

STATE_CHECKPOINT_NAME = "state.pt"
MODEL_NAME = "model.pth"
NAME = "name_"


class SchedulerType(Enum):
    """The names of learning-rate schedules."""

    LINEAR = "linear"
    COSINE = "cosine"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    POLYNOMIAL = "polynomial"
    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"


class TrainOutput(NamedTuple):
    """The step and the loss at the end of a training."""

    global_step: int
    training_loss: float


def set_seed(seed: int) -> None:
    """Seed the random numbers of Python, numpy and torch."""
    seed_all(seed)


def get_last_checkpoint(out_dir: str | Path) -> Path:
    """Return the folder in ``out_dir`` that was changed last."""
    found = [path for path in Path(out_dir).iterdir() if path.is_dir()]
    if not found:
        raise ValueError(f"there are no checkpoints in '{out_dir}'")
    return max(found, key=lambda path: path.stat().st_mtime).resolve()


def get_world_size() -> int:
    """Return the number of processes."""
    return dist.world_size()


def get_rank() -> int:
    """Return the number of this process."""
    return dist.rank()


def is_main_process() -> bool:
    """Return whether this is the process that prints and saves."""
    return dist.is_main()


def is_dist_avail_and_initialized() -> bool:
    """Return whether torch has a process group."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def reduce_value(value: Tensor, average: bool = True) -> Tensor:
    """Return the sum or the mean of a tensor over all processes."""
    if dist.world_size() == 1:
        return value
    total = value.detach().clone()
    torch.distributed.all_reduce(total)
    return total / dist.world_size() if average else total


def is_torch_tensor(tensor: Any) -> bool:
    """Return whether this is a tensor."""
    return isinstance(tensor, Tensor)


def recursively_apply(func: Callable[..., Any], data: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply a function to every tensor in nested lists, tuples and dicts."""
    return map_tensors(lambda tensor: func(tensor, *args, **kwargs), data)


def send_to_device(tensor: Any, device: Any) -> Any:
    """Return the same structure with every tensor on the device."""
    return map_tensors(lambda one: one.to(device), tensor)


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return a model without the wrappers of torch.compile and of data parallelism."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module
    return unwrap(model)
