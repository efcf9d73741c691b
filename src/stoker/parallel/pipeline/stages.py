"""A model split into pipeline stages: each process keeps its own parts of the model, in place."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as c10d
from torch import Tensor, nn

from stoker.core.tree import describe, local_part
from stoker.parallel.pipeline.stage_plan import plan_stages, stage_of

Kind: TypeAlias = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
"""The orders in which micro-batches go through stages."""


class Elsewhere(nn.Module):
    """Stands where a part of the model was that lives in another process."""

    def __init__(self, name: str, stage: int, rank: int) -> None:
        super().__init__()
        self._where = f"{name!r} is in pipeline stage {stage}, which process {rank} of the pipeline"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Say that this part cannot be called here."""
        raise RuntimeError(
            f"{self._where} holds: nobody else can call it. A step calls engine(…), not "
            "engine.model(…), and leaves the way through the stages to the schedule"
        )


def is_elsewhere(model: nn.Module, name: str) -> bool:
    """Whether the parameter or buffer of that name belongs to a part in another process."""
    for part in name.split(".")[:-1]:
        child = model._modules.get(part)
        if child is None or isinstance(child, Elsewhere):
            return child is not None
        model = child
    return False


class Stage(nn.Module):
    """Some parts of a model, run one after another; their names in the model stay as they were."""

    def __init__(self, index: int, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.index = index
        self.parts = nn.ModuleList(parts)
        self.executed: Callable[..., Any] = self.run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What `run` returns, as it is executed: in its precision, or compiled."""
        return self.executed(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """What the last part returns: a tensor, or a tuple of tensors."""
        first, *rest = self.parts
        values = _as_tuple(first(*args, **kwargs), first)
        for part in rest:
            values = _as_tuple(part(*values), part)
        return values[0] if len(values) == 1 else values


def _as_tuple(values: Any, part: nn.Module) -> tuple[Tensor, ...]:
    found = tuple(values) if isinstance(values, tuple | list) else (values,)
    if not found or not all(isinstance(value, Tensor) for value in found):
        raise TypeError(
            f"{type(part).__name__} returned {describe(values)}: a part of a pipeline returns a "
            "tensor or a tuple of tensors"
        )
    return found


class Stages:
    """The stages of a pipeline, seen from one process.

    Of P processes the first holds stages 0, P, 2P …, the second 1, P + 1, 2P + 1 …, and so on.

    Args:
        model: what remains of the model in this process.
        local: the stages of this process by number, ascending.
        group: the processes of this pipeline.
        tied: parameters that are in the stages of several processes: their names there.
    """

    def __init__(
        self,
        model: nn.Module,
        local: dict[int, Stage],
        group: c10d.ProcessGroup,
        tied: Sequence[dict[int, str]],
    ) -> None:
        self.model, self.local, self.group = model, local, group
        self.rank, self.processes = group.rank(), group.size()
        self.virtual = len(local)
        self.count = self.processes * self.virtual
        self._tied = [names for names in tied if self.rank in names]

    @property
    def has_first(self) -> bool:
        """Whether this process feeds the inputs in."""
        return 0 in self.local

    @property
    def has_last(self) -> bool:
        """Whether this process has the outputs and the loss."""
        return self.count - 1 in self.local

    def owned(self, parameter: Tensor) -> bool:
        """Whether it counts here; a parameter in several processes counts in the first alone."""
        return all(
            parameter is not self.model.get_parameter(names[self.rank])
            for names in self._tied
            if min(names) != self.rank
        )

    def ties(self) -> list[tuple[str, str]]:
        """The names of tied parameters here, each with another name of it elsewhere."""
        return [
            (names[self.rank], other)
            for names in self._tied
            for rank, other in names.items()
            if rank != self.rank
        ]

    def share_tied_gradients(self) -> None:
        """Give every process that holds a tied parameter the sum of its gradients.

        Called once per update, by all processes, after the schedule has run. The gradients are
        then the same bits everywhere, and so are the updates.
        """
        for names in self._tied:
            parameter = self.model.get_parameter(names[self.rank])
            if parameter.requires_grad:
                grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = grad.contiguous()
                self._sum(local_part(parameter.grad), sorted(names))

    def equalize_tied(self) -> None:
        """Give tied parameters the values that the first of their processes has."""
        for names in self._tied:
            self._from_first(
                local_part(self.model.get_parameter(names[self.rank]).data), sorted(names)
            )

    def _sum(self, tensor: Tensor, ranks: list[int]) -> None:
        first, *others = ranks
        if self.rank == first:
            for other in others:
                theirs = torch.empty_like(tensor)
                c10d.recv(theirs, group=self.group, group_src=other)
                tensor.add_(theirs)
        else:
            c10d.send(tensor, group=self.group, group_dst=first)
        self._from_first(tensor, ranks)

    def _from_first(self, tensor: Tensor, ranks: list[int]) -> None:
        first, *others = ranks
        if self.rank == first:
            for other in others:
                c10d.send(tensor, group=self.group, group_dst=other)
        else:
            c10d.recv(tensor, group=self.group, group_src=first)


def split_model(
    model: nn.Module,
    group: c10d.ProcessGroup,
    *,
    virtual: int = 1,
    sequence: Sequence[str] | None = None,
    split: Sequence[str] | None = None,
) -> Stages:
    """Leave of a model what this process holds, and put `Elsewhere` in the place of the rest.

    The model stays the same object and its parts keep their names, so that the state dicts of all
    processes together are that of the whole model. Parameters that stages share, such as those of
    an embedding and a head, begin with the values of the first of their processes.

    Args:
        model: the whole model; on every process of the group the same.
        group: the processes of the pipeline.
        virtual: how many stages each process holds.
        sequence: the parts in the order they run, see `stage_plan.parts_of`.
        split: the first part of every stage but the first; balanced without.
    """
    size, rank = group.size(), group.rank()
    plan = plan_stages(model, size * virtual, sequence=sequence, split=split)
    tied = _tied_parameters(model, plan, size)
    local = {
        stage: Stage(stage, [model.get_submodule(name) for name in parts])
        for stage, parts in enumerate(plan)
        if stage % size == rank
    }
    for stage, parts in enumerate(plan):
        if stage not in local:
            for name in parts:
                _replace(model, name, Elsewhere(name, stage, stage % size))
    stages = Stages(model, local, group, tied)
    stages.equalize_tied()
    return stages


def _tied_parameters(
    model: nn.Module, plan: list[list[str]], processes: int
) -> list[dict[int, str]]:
    """Parameters that several processes will hold: by process, one name each has there."""
    places: dict[int, dict[int, str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        stage = stage_of(name, plan)
        assert stage is not None
        places.setdefault(id(parameter), {}).setdefault(stage % processes, name)
    return [names for names in places.values() if len(names) > 1]


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, key = name.rpartition(".")
    model.get_submodule(parent)._modules[key] = module
