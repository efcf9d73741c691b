"""Build the complete model of a pipeline from stages that each process has made alone.

Use it for a model that is too large to be built in one process, or that a script has cut itself.
The processes describe their stages to each other, and each gets the complete model, with
placeholders without memory for the stages of the others.
"""

from typing import Any

import torch
from torch import Tensor, nn

from stoker.core import dist

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

    def __init__(self, described: Described, device: torch.device) -> None:
        super().__init__()
        self.modules_of_stage = described["modules"]
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
    model: nn.Module,
    optimizer: Any,
    device: torch.device,
    processes: int,
    virtual: int = 1,
    *,
    is_stage: bool = True,
) -> nn.Module:
    """Return the complete model of a pipeline. All processes must call it.

    The optimizer gets placeholders for the parameters of the other stages, so that its saved state
    is that of the complete model. Use ``Layout(pipeline=…, split=model.pipeline_parts[1:])``.

    Args:
        model: the stage of this process, or an `nn.ModuleList` of its ``virtual`` stages. If
            ``is_stage`` is False, models that are the same in all processes are complete models.
        optimizer: that of the parameters in this process; changed in place.
        device: where placeholders are.
        processes: the number of processes in the pipeline.
        virtual: the number of stages per process.
        is_stage: whether the model is known to be a stage.
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
            else _OtherStage(rows[index % processes][0][0][index // processes], device)
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
                f"processes of pipeline stage {stage} have passed different models: the stage of a "
                f"process is its rank // {len(row)}"
            )
        if len(row[0][0]) != virtual:
            raise ValueError(
                f"pipeline stage {stage} has passed {len(row[0][0])} stages, expected {virtual} in "
                "each process (several as an nn.ModuleList)"
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
