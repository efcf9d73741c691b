"""Models that a script has cut into pipeline stages itself.

Stoker splits a complete model. A script for Colossal-AI may pass the complete model too, or each
process its own stage, as ``gpc.get_local_rank(ParallelMode.PIPELINE)`` numbers it; with
``num_chunks`` an `nn.ModuleList` of stages. In that case the processes describe their stages to
each other, and each builds the complete model with placeholders for the stages of the others.
"""

from typing import Any

import torch
from torch import Tensor, nn

from stoker.core import dist
from stoker.engine.checks import resolve_device

Described = dict[str, Any]


class StagedModel(nn.Module):
    """A complete model: ``stage0``, ``stage1``, … run one after another."""

    def __init__(self, stages: list[nn.Module]) -> None:
        super().__init__()
        self.pipeline_parts: tuple[str, ...] = tuple(
            f"stage{index}" for index in range(len(stages))
        )
        for name, stage in zip(self.pipeline_parts, stages, strict=True):
            self.add_module(name, stage)


class _OtherStage(nn.Module):
    """A placeholder with the parameters of a stage that another process holds, without memory."""

    def __init__(self, described: Described) -> None:
        super().__init__()
        self.modules_of_stage = described["modules"]
        device = resolve_device("auto")
        for name, shape, dtype, trained in described["parameters"]:
            owner: nn.Module = self
            *path, last = name.split(".")
            for key in path:
                if key not in owner._modules:
                    owner.add_module(key, nn.Module())
                owner = owner.get_submodule(key)
            empty = torch.empty((), dtype=dtype, device=device).expand(shape)
            owner.register_parameter(last, nn.Parameter(empty, requires_grad=trained))

    def forward(self, *args: Any) -> Any:
        """Raise an error: another process runs this stage."""
        raise RuntimeError("another process holds this stage")


def join_stages(
    model: nn.Module, optimizer: Any, processes: int, virtual: int, *, is_stage: bool
) -> nn.Module:
    """Return the complete model of a pipeline. All processes must call it.

    If each process has passed its own stages, the optimizer gets placeholders for the parameters
    of the others, so that its saved state is that of the complete model.

    Args:
        model: the complete model, or the stages of this process.
        optimizer: changed in place.
        processes: the number of processes in the pipeline.
        virtual: the number of stages per process.
        is_stage: whether the model is a stage even if all processes have passed equal ones.
    """
    stages = list(model) if isinstance(model, nn.ModuleList) else [model]
    described = [_describe(stage) for stage in stages]
    found = dist.all_gather_object((described, _names_by_group(stages, optimizer), is_stage))
    equal = all(other[0] == described for other in found)
    is_list = isinstance(model, nn.ModuleList)
    if equal and not is_list and not any(other[2] for other in found):
        return model
    ranks = len(found) // processes
    rows = [found[stage * ranks : (stage + 1) * ranks] for stage in range(processes)]
    _check_stages(rows, virtual)
    own = dist.rank() // ranks
    joined = StagedModel(
        [
            stages[index // processes]
            if index % processes == own
            else _OtherStage(rows[index % processes][0][0][index // processes])
            for index in range(processes * virtual)
        ]
    )
    _join_groups(joined, optimizer, [row[0][1] for row in rows])
    return joined


def _describe(stage: nn.Module) -> Described:
    parameters = [(n, p.shape, p.dtype, p.requires_grad) for n, p in stage.named_parameters()]
    return {
        "parameters": parameters,
        "modules": [f"{name}: {type(m).__qualname__}" for name, m in stage.named_modules()],
    }


def _names_by_group(stages: list[nn.Module], optimizer: Any) -> list[list[list[str]]]:
    """Return the names of an optimizer's parameters, by group and stage of this process."""
    names = [{id(p): name for name, p in stage.named_parameters()} for stage in stages]
    known = {key for one in names for key in one}
    groups = [group["params"] for group in optimizer.param_groups] if optimizer is not None else []
    if any(id(parameter) not in known for group in groups for parameter in group):
        raise ValueError("the optimizer has parameters that are not in the model of this process")
    return [[[n[id(p)] for p in group if id(p) in n] for n in names] for group in groups]


def _check_stages(rows: list[list[Any]], virtual: int) -> None:
    """Reject stages that do not make one model."""
    for stage, row in enumerate(rows):
        if any(other[0] != row[0][0] for other in row):
            raise ValueError(
                f"processes of pipeline stage {stage} have passed different models: take the stage "
                "of a process from gpc.get_local_rank(ParallelMode.PIPELINE)"
            )
        if len(row[0][0]) != virtual:
            raise ValueError(
                f"pipeline stage {stage} has passed {len(row[0][0])} stages, expected {virtual} in "
                "each process: an nn.ModuleList of model.num_chunks stages"
            )
        if len(row[0][1]) != len(rows[0][0][1]):
            raise ValueError(
                f"the optimizer of pipeline stage {stage} has {len(row[0][1])} parameter groups, "
                f"that of stage 0 has {len(rows[0][0][1])}: create the same groups in every process"
            )


def _join_groups(model: StagedModel, optimizer: Any, names: list[list[list[list[str]]]]) -> None:
    """Let the groups of an optimizer have the parameters of all stages, in order."""
    processes = len(names)
    for number, group in enumerate([] if optimizer is None else optimizer.param_groups):
        every: list[Tensor] = []
        for index, stage in enumerate(model.children()):
            held = names[index % processes][number][index // processes]
            every += [stage.get_parameter(name) for name in held]
        group["params"] = every
