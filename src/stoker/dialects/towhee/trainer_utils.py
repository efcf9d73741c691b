"""Helpers of Towhee's trainer that scripts import: seeds, devices, processes, file names."""

from enum import Enum
from typing import Any

from torch import Tensor, nn

from stoker.core import dist
from stoker.core.seed import seed_all
from stoker.core.tree import map_tensors
from stoker.engine import unwrap

STATE_CHECKPOINT_NAME = "state.pt"
MODEL_NAME = "model.pth"
NAME = "name_"


SchedulerType = Enum("SchedulerType", {
    "LINEAR": "linear", "COSINE": "cosine", "COSINE_WITH_RESTARTS": "cosine_with_restarts",
    "POLYNOMIAL": "polynomial", "CONSTANT": "constant",
    "CONSTANT_WITH_WARMUP": "constant_with_warmup",
})  # fmt: skip

set_seed, get_rank, get_world_size = seed_all, dist.rank, dist.world_size
is_main_process = dist.is_main


def reduce_value(value: Tensor, average: bool = True) -> Tensor:
    """Return the sum or the mean of a tensor over all processes."""
    if dist.world_size() == 1:
        return value
    total = value.new_tensor(dist.all_reduce_sum(*value.flatten().tolist())).view(value.shape)
    return total / dist.world_size() if average else total


def send_to_device(tensor: Any, device: Any) -> Any:
    """Return the same structure with every tensor on the device."""
    return map_tensors(lambda one: one.to(device), tensor)


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return a model without the wrappers of torch.compile and of data parallelism."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module
    return unwrap(model)
