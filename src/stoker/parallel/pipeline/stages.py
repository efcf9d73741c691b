"""The stages of a pipeline: what one process runs, and what it shares with the others."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as c10d
from torch import Tensor, nn

from stoker.core.tree import describe, local_part

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of one call of the model."""
Answers: TypeAlias = dict[str, list[Any]]
"""For each part that ran, what each of its calls returned, as tensors on the meta device."""


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
    """Consecutive parts of a model; their names in the model do not change.

    Attributes:
        needs_call: whether the stage needs the arguments of the model even if it is not the first.
    """

    needs_call = False

    def __init__(self, index: int, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.index = index
        self.parts = nn.ModuleList(parts)
        self.prepared: Callable[..., Any] = self.run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call `run` as the engine has prepared it, with its precision and device."""
        return self.prepared(*args, **kwargs)

    def arguments(self, received: Sequence[Tensor], call: Call | None, answers: Answers) -> Call:
        """Return the arguments of the stage for a micro-batch.

        Args:
            received: what the previous stage has sent; ignored by the first stage.
            call: the arguments of the model, for a stage that needs them.
            answers: what the parts of earlier stages return.
        """
        if self.index:
            return tuple(received), {}
        assert call is not None
        return call

    def probe(
        self, received: Sequence[Tensor], call: Call | None, answers: Answers
    ) -> tuple[Any, Answers]:
        """Return the output for a micro-batch, and what later stages need to know of the parts."""
        args, kwargs = self.arguments(received, call, answers)
        return self(*args, **kwargs), {}

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

    Attributes:
        needs_calls: whether this process needs the arguments of the model.
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
        self.needs_calls = any(not index or stage.needs_call for index, stage in local.items())
        self._tied = [names for names in tied if self.rank in names]

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
