"""Copies of modules without memory: what they are, and in which order they run."""

from typing import Any

import torch
from torch import nn


def skeleton(module: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy of a module with tensors of the same shape and dtype, without memory.

    A model may read attributes of a part that it does not run, such as the dtype of a weight.
    """
    made = module.__class__.__new__(module.__class__)
    made.__dict__.update(module.__dict__)
    made.__dict__["_modules"] = {
        name: None if child is None else skeleton(child, device)
        for name, child in module._modules.items()
    }
    made.__dict__["_buffers"] = {n: _without_memory(t, device) for n, t in module._buffers.items()}
    made.__dict__["_parameters"] = {
        name: None
        if tensor is None
        else nn.Parameter(_without_memory(tensor, device), requires_grad=False)
        for name, tensor in module._parameters.items()
    }
    return made


def _without_memory(tensor: Any, device: torch.device) -> Any:
    if tensor is None:
        return None
    return torch.zeros((), dtype=tensor.dtype, device=device).expand(tensor.shape)


def call_order(model: nn.Module) -> list[str]:
    """Return the names of modules in the order in which they first run; empty if it is unknown.

    A copy without memory runs on the batch that the model offers, see `verify.run_example`.
    """
    if not hasattr(model, "dummy_inputs"):
        return []
    from stoker.parallel.tensor import verify  # slow to import

    example = verify.run_example(skeleton(model, torch.device("meta")), partly=True)
    return [] if example is None else [*example.calls]
