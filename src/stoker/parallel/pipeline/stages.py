"""Split a model into pipeline stages: each process keeps its parts of the model, in place."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as c10d
from torch import Tensor, nn

from stoker.core.tree import describe, local_part
from stoker.parallel.pipeline.stage_plan import plan_stages, stage_of


class RemoteModule(nn.Module):
    """A placeholder for a part of the model that another process holds.

    Args:
        name: its name in the model.
        stage: the stage it belongs to.
        rank: the process of the pipeline that holds it.
        tied: the names of its parameters that are tied to one of this process, with the name here.
    """

    def __init__(
        self, name: str, stage: int, rank: int, tied: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        self.tied = dict(tied or {})
        self._location = f"{name!r} is in pipeline stage {stage}, in process {rank} of the pipeline"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error: this part cannot be called in this process."""
        raise RuntimeError(
            f"{self._location}, and cannot be called in this one: call engine(…) in a step, not "
            "engine.model(…), and the schedule runs the stages"
        )


def is_remote(model: nn.Module, name: str) -> bool:
    """Return whether the parameter or buffer of that name is in another process."""
    for part in name.split(".")[:-1]:
        child = model._modules.get(part)
        if child is None or isinstance(child, RemoteModule):
            return child is not None
        model = child
    return False


class Stage(nn.Module):
    """Consecutive parts of a model; their names in the model do not change."""

    def __init__(self, index: int, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.index = index
        self.parts = nn.ModuleList(parts)
        self.prepared: Callable[..., Any] = self.run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call `run` as the engine has prepared it, with its precision and device."""
        return self.prepared(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the last part: a tensor, or a tuple of tensors."""
        first, *rest = self.parts
        values = _as_tuple(first(*args, **kwargs), first)
        for part in rest:
            values = _as_tuple(part(*values), part)
        return values[0] if len(values) == 1 else values


def _as_tuple(values: Any, part: nn.Module) -> tuple[Tensor, ...]:
    found = tuple(values) if isinstance(values, tuple | list) else (values,)
    if not found or not all(isinstance(value, Tensor) for value in found):
        raise TypeError(
            f"{type(part).__name__} returned {describe(values)}: expected a tensor or a tuple of "
            "tensors from every part of a pipeline"
        )
    return found


class Stages:
    """The stages of a pipeline, from the view of one process.

    Of P processes the first holds stages 0, P, 2P …, the second 1, P + 1, 2P + 1 …, and so on.

    Args:
        model: the model, with placeholders for remote parts.
        local: the stages of this process by number, ascending.
        group: the processes of this pipeline.
        tied: for each parameter that several processes hold, its name in each.
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
        """Whether this process has the first stage, which reads the inputs."""
        return 0 in self.local

    @property
    def has_last(self) -> bool:
        """Whether this process has the last stage, with the outputs and the loss."""
        return self.count - 1 in self.local

    def owns(self, parameter: Tensor) -> bool:
        """Return whether a parameter counts here; a tied one counts in its first process only."""
        return all(
            parameter is not self.model.get_parameter(names[self.rank])
            for names in self._tied
            if min(names) != self.rank
        )

    def share_tied_gradients(self) -> None:
        """Sum the gradients of tied parameters over the processes that hold them.

        All processes call it once per update, after the schedule has run. The gradients, and so
        the updates, are then the same bits in all of them.
        """
        for names in self._tied:
            parameter = self.model.get_parameter(names[self.rank])
            if parameter.requires_grad:
                grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = grad.contiguous()
                self._sum(local_part(parameter.grad), sorted(names))

    def broadcast_tied(self) -> None:
        """Copy tied parameters from the first process that holds them."""
        for names in self._tied:
            parameter = self.model.get_parameter(names[self.rank])
            self._broadcast(local_part(parameter.data), sorted(names))

    def _sum(self, tensor: Tensor, ranks: list[int]) -> None:
        first, *others = ranks
        if self.rank == first:
            for other in others:
                received = torch.empty_like(tensor)
                c10d.recv(received, group=self.group, group_src=other)
                tensor.add_(received)
        else:
            c10d.send(tensor, group=self.group, group_dst=first)
        self._broadcast(tensor, ranks)

    def _broadcast(self, tensor: Tensor, ranks: list[int]) -> None:
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
    """Keep the parts of a model that this process holds, and replace the rest by placeholders.

    The model stays the same object and its parts keep their names, so that the state dicts of all
    processes together are that of the complete model. Parameters that stages share, such as those
    of an embedding and a head, start with the values of the first process that holds them.

    Args:
        model: the complete model, the same on every process of the group.
        group: the processes of the pipeline.
        virtual: the number of stages per process.
        sequence: the parts in the order in which they run, see `stage_plan.parts_of`.
        split: the first part of every stage but the first; by default stages are balanced.
    """
    size, rank = group.size(), group.rank()
    plan = plan_stages(model, size * virtual, sequence=sequence, split=split)
    tied = _tied_parameters(model, plan, size)
    local = {
        stage: Stage(stage, [model.get_submodule(name) for name in parts])
        for stage, parts in enumerate(plan)
        if stage % size == rank
    }
    tied_here = _tied_to_local(model, plan, set(local))
    for stage, parts in enumerate(plan):
        if stage not in local:
            for name in parts:
                names = {n: here for n, here in tied_here.items() if n.startswith(f"{name}.")}
                _replace(model, name, RemoteModule(name, stage, stage % size, names))
    stages = Stages(model, local, group, tied)
    stages.broadcast_tied()
    return stages


def _tied_parameters(
    model: nn.Module, plan: list[list[str]], processes: int
) -> list[dict[int, str]]:
    """Return the parameters that several processes will hold, as one name by process."""
    places: dict[int, dict[int, str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        stage = stage_of(name, plan)
        assert stage is not None
        places.setdefault(id(parameter), {}).setdefault(stage % processes, name)
    return [names for names in places.values() if len(names) > 1]


def _tied_to_local(model: nn.Module, plan: list[list[str]], local: set[int]) -> dict[str, str]:
    """Return the names of parameters in other stages that are tied to one of the local stages."""
    named = [
        (name, id(parameter), stage_of(name, plan) in local)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    ]
    here = {key: name for name, key, is_local in reversed(named) if is_local}
    return {name: here[key] for name, key, is_local in named if not is_local and key in here}


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, key = name.rpartition(".")
    model.get_submodule(parent)._modules[key] = module
