"""Split a model into pipeline stages: each process keeps its parts of the model, in place."""

from collections.abc import Sequence

import torch
import torch.distributed as c10d
from torch import nn

from stoker.parallel.meta_device import is_meta, materialize
from stoker.parallel.pipeline.block_stages import BlockStage, Runs, SkippedModule
from stoker.parallel.pipeline.skeleton import skeleton
from stoker.parallel.pipeline.stage_plan import blocks_to_cut, plan_stages, stage_of
from stoker.parallel.pipeline.stages import RemoteModule, Stage, Stages


def split_model(
    model: nn.Module,
    group: c10d.ProcessGroup,
    device: torch.device,
    *,
    virtual: int = 1,
    sequence: Sequence[str] | None = None,
    split: Sequence[str] | None = None,
) -> Stages:
    """Keep the parts of a model that this process holds, and replace the rest by placeholders.

    The model stays the same object and its parts keep their names, so that the state dicts of all
    processes together are that of the complete model. Parameters that stages share, such as those
    of an embedding and a head, start with the values of the first process that holds them.

    Args:
        model: the complete model, the same on every process of the group.
        group: the processes of the pipeline.
        device: where to allocate a model that is on the meta device; a process allocates its
            stages alone.
        virtual: the number of stages per process.
        sequence: the parts in the order in which they run, see `stage_plan.parts_of`.
        split: the first part of every stage but the first; by default stages are balanced.
    """
    size, rank = group.size(), group.rank()
    plan = plan_stages(model, size * virtual, sequence=sequence, split=split)
    found = blocks_to_cut(model, sequence, split)
    runs, blocks = Runs(), found.blocks if found is not None else []
    tied = _tied_parameters(model, plan, size)
    if is_meta(model) and device.type != "meta":
        materialize(model, device, keep=lambda name: _is_held(name, plan, rank, size))
    local: dict[int, Stage] = {
        stage: BlockStage(stage, plan, blocks, model, runs)
        if blocks
        else Stage(stage, [model.get_submodule(name) for name in parts])
        for stage, parts in enumerate(plan)
        if stage % size == rank
    }
    for name, parameter in model.named_parameters():
        if stage_of(name, plan) is None:  # every stage may use it
            for one in local.values():
                one.register_parameter(name.replace(".", "_"), parameter)
    tied_here = _tied_to_local(model, plan, set(local))
    for stage, name in ((stage, name) for stage, parts in enumerate(plan) for name in parts):
        part, where = model.get_submodule(name), (name, stage, stage % size)
        if stage in local:
            for other in local.values():  # a process may have several stages
                if isinstance(other, BlockStage) and other.index != stage:
                    other.replace(name, SkippedModule(part, runs, *where))
            continue
        names = {n: here for n, here in tied_here.items() if n.startswith(f"{name}.")}
        parent, _, key = name.rpartition(".")
        model.get_submodule(parent)._modules[key] = (
            SkippedModule(skeleton(part, device), runs, *where, names)
            if blocks
            else RemoteModule(*where, names)
        )
    stages = Stages(model, local, group, tied)
    stages.broadcast_tied()
    return stages


def _is_held(name: str, plan: list[list[str]], rank: int, size: int) -> bool:
    """Return whether a process holds the parameter or buffer of a name."""
    stage = stage_of(name, plan)
    return stage is None or stage % size == rank


def _tied_parameters(
    model: nn.Module, plan: list[list[str]], processes: int
) -> list[dict[int, str]]:
    """Return the parameters that several processes will hold, as one name by process.

    A parameter that is in no part is in every process.
    """
    places: dict[int, dict[int, str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        stage = stage_of(name, plan)
        for process in range(processes) if stage is None else [stage % processes]:
            places.setdefault(id(parameter), {}).setdefault(process, name)
    return [names for names in places.values() if len(names) > 1]


def _tied_to_local(model: nn.Module, plan: list[list[str]], local: set[int]) -> dict[str, str]:
    """Return the names of parameters in other stages that are tied to one of the local stages."""
    named = [
        (name, id(parameter), stage_of(name, plan) in local)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    ]
    here = {key: name for name, key, is_local in reversed(named) if is_local}
    return {name: here[key] for name, key, is_local in named if not is_local and key in here}
