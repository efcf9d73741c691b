"""Shard parameters, gradients and optimizer state with torch's FSDP2."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

import torch
import torch.distributed as c10d
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard

from stoker.core.errors import did_you_mean
from stoker.core.tree import is_sharded
from stoker.parallel.gradients import GradientSync
from stoker.parallel.layout import Layout
from stoker.parallel.meta_device import is_meta, materialize

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class FSDPSync(GradientSync):
    """Keeps a shard of every parameter in each process and gathers the rest on use.

    Args:
        model: sharded in place, block by block.
        stages: its pipeline stages in this process, or the model itself.
        mesh: one dimension for shards, or two, for copies and shards.
        layout: the options for shards.
    """

    def __init__(
        self, model: nn.Module, stages: Sequence[nn.Module], mesh: DeviceMesh, layout: Layout
    ) -> None:
        if isinstance(model, nn.ModuleDict | nn.ModuleList):
            raise ValueError(
                f"a {type(model).__name__} cannot be sharded, because it has no forward: put it "
                "into a module that has one, or use replicate instead of shard"
            )
        for name in (n for stage in stages if stage is not model for n in stage._parameters):
            raise ValueError(
                f"parameter {name!r} is in no part of one pipeline stage, so that it cannot be "
                "sharded: put it into a module that is called, or use replicate instead of shard"
            )
        for tensor in chain(model.parameters(), model.buffers()):
            if not is_sharded(tensor) and not tensor.is_meta:
                _broadcast_first(tensor, mesh)
        options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": layout.reshard}
        if layout.dtype is not None:
            options["mp_policy"] = MixedPrecisionPolicy(_DTYPES[layout.dtype], torch.float32)
        if layout.offload:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
        for block in blocks_of(model, layout.blocks):
            if not _shares_parameters(block, model):  # FSDP2 ties only what it gathers together
                fully_shard(block, **options)
        sharded = [fully_shard(stage, **options) for stage in stages]
        self._stages = [stage for stage in sharded if isinstance(stage, FSDPModule)]
        self._enabled = True
        if is_meta(model):
            device = torch.device("cpu" if layout.offload else mesh.device_type)
            materialize(model, device, lambda tensor: _broadcast_first(tensor, mesh))

    @contextmanager
    def sync(self, *, enabled: bool) -> Iterator[None]:
        """Within this context, backward reduces gradients to shards or keeps them unsharded."""
        before, self._enabled = self._enabled, enabled
        self._set(enabled)
        try:
            yield
        finally:
            self._enabled = before
            self._set(before)

    def _set(self, enabled: bool) -> None:
        for stage in self._stages:
            stage.set_requires_gradient_sync(enabled)


def blocks_of(model: nn.Module, pattern: str | None) -> list[nn.Module]:
    """Return the modules to gather one at a time.

    These are the modules that match the pattern, or the longest list of modules of one class.

    Raises:
        ValueError: no module matches.
    """
    if pattern is not None:
        found = {name: m for name, m in model.named_modules() if _matches(name, pattern)}
        if not found:
            names = [name for name, _ in model.named_modules() if name]
            hint = did_you_mean(pattern.replace(".*", ""), names)
            raise ValueError(f"blocks is {pattern!r}, but no module matches{hint}")
        return [module for module in found.values() if any(True for _ in module.parameters())]
    lists = [
        [child for child in module.children() if any(True for _ in child.parameters())]
        for module in model.modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
    ]
    repeated = [one for one in lists if len(one) > 1 and len({type(child) for child in one}) == 1]
    return max(repeated, key=len, default=[])


def _shares_parameters(block: nn.Module, model: nn.Module) -> bool:
    """Return whether the block has a parameter that a module outside of it has too."""
    inside = set(block.modules())
    own = set(block.parameters())
    return any(
        parameter in own
        for module in model.modules()
        if module not in inside
        for parameter in module.parameters(recurse=False)
    )


def _matches(name: str, pattern: str) -> bool:
    """Return whether a dotted name matches a pattern, part by part."""
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


@torch.no_grad()
def _broadcast_first(tensor: torch.Tensor, mesh: DeviceMesh) -> None:
    """Copy a tensor from the first process of the mesh to all others."""
    for dim in reversed(range(mesh.ndim)):
        group = mesh.get_group(dim)
        c10d.broadcast(tensor.detach(), c10d.get_process_group_ranks(group)[0], group=group)
