"""`ParallelModel`: a model as a layout has it run in this process."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as c10d
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.optim import Optimizer

from stoker.core import dist
from stoker.core.tree import is_sharded, map_tensors
from stoker.core.types import Batch
from stoker.parallel.gradients import Averaged, Copies, Gradients
from stoker.parallel.layout import Layout
from stoker.parallel.parameter_index import ParameterIndex
from stoker.parallel.pipeline.stages import Stages, split_model


class ParallelModel:
    """A model as it runs in one process; `Distributed` is the same for one of several.

    It is asked, never inspected: whoever trains does not know which layout there is.

    Attributes:
        part, parts: which part of every batch this process reads, and how many there are.
        copies: the processes that read the other parts and do the same with them, if there are.
        stages: those of a pipeline, None where the model is whole.
        numbers: by ``id`` of an optimizer that has only some of the parameters, which ones.
    """

    part, parts = 0, 1
    copies: c10d.ProcessGroup | None = None
    stages: Stages | None = None

    def __init__(self) -> None:
        self.numbers: dict[int, ParameterIndex] = {}

    def wrap(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The forward pass of the model as it runs here."""
        return forward

    def add(self, module: nn.Module) -> None:
        """Share the gradients of another module, such as a criterion with parameters, too."""

    @contextmanager
    def sync(self, *, enabled: bool) -> Iterator[None]:
        """Whether the backward pass within it shares gradients between processes."""
        yield

    def after_backward(self) -> None:
        """A backward pass is over: share what was not shared on the way."""

    def before_eval(self) -> None:
        """The model is about to be judged: all processes judge the same."""

    def in_step(self, *numbers: float) -> list[list[float]]:
        """The numbers of all processes that must run the model as often as this one, it among them.

        They need each other's part of it for every pass. All of them call it.
        """
        return [list(numbers)]

    def clip_grad_norm(
        self, parameters: Iterable[nn.Parameter], limit: float, norm_type: float
    ) -> Tensor:
        """Scale gradients down to a total norm of ``limit`` over all processes; what it was."""
        return nn.utils.clip_grad_norm_(parameters, limit, norm_type)

    def clip_grad_value(self, parameters: Iterable[nn.Parameter], limit: float) -> None:
        """Bound each element of the gradients by ``limit``."""
        nn.utils.clip_grad_value_(parameters, limit)

    def total_norm(self, parameters: Iterable[nn.Parameter], norm_type: float = 2.0) -> Tensor:
        """The norm of all gradients, wherever they are."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        return nn.utils.get_total_norm(gradients, norm_type) if gradients else torch.zeros(())

    def whole(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All of the model's weights, whole, on the CPU, each in memory of its own."""
        found: dict[str, Tensor] = {}
        seen: set[int] = set()
        for name, weight in weights.items():
            tensor = weight.detach().cpu().contiguous()
            where = tensor.untyped_storage().data_ptr()
            found[name] = tensor.clone() if where in seen else tensor
            seen.add(where)
        return found

    def joined(
        self, outputs: list[Any], in_order: Callable[[list[list[Any]]], list[Any]]
    ) -> list[Any]:
        """The outputs of all processes, by what puts those of the parts of the data in order."""
        return outputs

    def place(self, batch: Batch, device: torch.device) -> Batch:
        """The batch with its tensors on the device."""
        if hasattr(batch, "to") and not isinstance(batch, Tensor):
            return batch.to(device)
        return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)


class Distributed(ParallelModel):
    """A model that several processes run together.

    Args:
        layout: how; for as many processes as there are.
        model: split in place.
        device: where it is.
        whole: whether one optimizer trains it all, so that a step runs the model as a whole.
    """

    def __init__(
        self, layout: Layout, model: nn.Module, device: torch.device, *, whole: bool
    ) -> None:
        super().__init__()
        self._mesh = _mesh(layout, device)
        copies = tuple(name for name in ("replicate", "shard") if name in self._names)
        self.parts = layout.parts
        self.copies = self._group(copies) if copies else None
        self.part = c10d.get_rank(self.copies) if copies else 0
        self._is_whole = self._names == ("replicate",)
        self._gradients = [self._split(layout, model, whole=whole)]

    def _split(self, layout: Layout, model: nn.Module, *, whole: bool) -> Gradients:
        """Split the model: layers first, then stages, then what each holds."""
        if layout.tensor > 1:
            from stoker.parallel.tensor.split import split_layers  # brings in slow packages

            split_layers(model, self._mesh["tensor"], layout.plan)
        stages: list[nn.Module] = [model]
        if layout.pipeline > 1:
            self.stages = split_model(
                model,
                self._mesh.get_group("pipeline"),
                virtual=layout.stages,
                sequence=layout.sequence,
                split=layout.split,
            )
            stages = list(self.stages.local.values())
        if layout.shard > 1:
            from stoker.parallel.shards import Shards  # brings in slow packages

            own = tuple(name for name in ("replicate", "shard") if name in self._names)
            return Shards(model, stages, self._mesh[own], layout)
        trained = any(parameter.requires_grad for parameter in model.parameters())
        if self._names == ("replicate",) and whole and trained:
            return Copies(model, self._mesh.get_group("replicate"), unused=layout.unused)
        if layout.replicate > 1:
            return Averaged(model, self._mesh.get_group("replicate"))
        return Gradients()

    def wrap(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The forward pass of the model as it runs here."""
        return self._gradients[0].wrap(forward)

    def add(self, module: nn.Module) -> None:
        """Share the gradients of another module, such as a criterion with parameters, too."""
        if self.copies is not None and any(True for _ in module.parameters()):
            self._gradients.append(Averaged(module, self.copies))

    @contextmanager
    def sync(self, *, enabled: bool) -> Iterator[None]:
        """Whether the backward pass within it shares gradients between processes."""
        with ExitStack() as stack:
            for one in self._gradients:
                stack.enter_context(one.sync(enabled=enabled))
            yield

    def after_backward(self) -> None:
        """A backward pass is over: share what was not shared on the way."""
        for one in self._gradients:
            one.after_backward()

    def before_eval(self) -> None:
        """The model is about to be judged: all processes judge the same."""
        for one in self._gradients:
            one.before_eval()

    def in_step(self, *numbers: float) -> list[list[float]]:
        """The numbers of all processes that must run the model as often as this one, it among them.

        They need each other's part of it for every pass. All of them call it.
        """
        return (
            dist.all_gather_floats(*numbers)
            if "shard" in self._names
            else super().in_step(*numbers)
        )

    def clip_grad_norm(
        self, parameters: Iterable[nn.Parameter], limit: float, norm_type: float
    ) -> Tensor:
        """Scale gradients down to a total norm of ``limit`` over all processes; what it was."""
        if self._is_whole:
            return super().clip_grad_norm(parameters, limit, norm_type)
        from stoker.parallel import grad_norm as norm

        return norm.clip_grad_norm(
            parameters, limit, norm_type, over=self._others(), counts=self._counts
        )

    def clip_grad_value(self, parameters: Iterable[nn.Parameter], limit: float) -> None:
        """Bound each element of the gradients by ``limit``."""
        from stoker.parallel import grad_norm as norm

        norm.clip_grad_value(parameters, limit)

    def total_norm(self, parameters: Iterable[nn.Parameter], norm_type: float = 2.0) -> Tensor:
        """The norm of all gradients, wherever they are."""
        if self._is_whole:
            return super().total_norm(parameters, norm_type)
        from stoker.parallel import grad_norm as norm

        gradients = [p.grad for p in parameters if p.grad is not None and self._counts(p)]
        return norm.total_norm(gradients, norm_type, over=self._others())

    def whole(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All of the model's weights, whole, on the CPU, each in memory of its own."""
        gathered: dict[str, Any] = dict(weights)
        for name, weight in gathered.items():
            gathered[name] = weight.full_tensor() if is_sharded(weight) else weight
        found = super().whole(gathered)
        if self.stages is None:
            return found
        everywhere = dist.all_gather_object(found)
        return {name: weight for part in everywhere for name, weight in part.items()}

    def joined(
        self, outputs: list[Any], in_order: Callable[[list[list[Any]]], list[Any]]
    ) -> list[Any]:
        """The outputs of all processes, by what puts those of the parts of the data in order."""
        has_them = self.stages is None or self.stages.has_last
        found = dist.all_gather_object((self.part, outputs) if has_them else None)
        by_part = dict(one for one in reversed(found) if one is not None)
        return in_order([by_part[part] for part in range(self.parts)])

    @property
    def _names(self) -> tuple[str, ...]:
        return self._mesh.mesh_dim_names or ()

    def _group(self, names: tuple[str, ...]) -> c10d.ProcessGroup:
        """The processes that differ from this one in these dimensions alone."""
        mesh = self._mesh
        return mesh[names]._flatten().get_group() if len(names) > 1 else mesh.get_group(names[0])

    def _others(self) -> list[c10d.ProcessGroup]:
        """Groups with further parameters of the same model."""
        return [] if self.stages is None else [self.stages.group]

    def _counts(self, parameter: nn.Parameter) -> bool:
        return self.stages is None or self.stages.owned(parameter)


def placed(whole: Tensor, like: Any) -> Tensor:
    """A whole tensor in the form of another one: itself, or this process's shard of it."""
    if not is_sharded(like):
        return whole
    from torch.distributed.tensor import distribute_tensor  # slow to import

    return distribute_tensor(
        whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )


def wrap_model(
    layout: Layout, model: nn.Module, device: torch.device, optimizers: Iterable[Optimizer]
) -> ParallelModel:
    """Split a model as the layout says, in place; its optimizers follow the parameters."""
    if layout.processes == 1:
        return ParallelModel()
    from stoker.parallel.optimizers import repoint  # brings in slow packages

    optimizers = list(optimizers)
    before = [(name, id(p)) for name, p in model.named_parameters(remove_duplicate=False)]
    made = Distributed(layout, model, device, whole=len(optimizers) == 1)
    now = dict(model.named_parameters(remove_duplicate=False))
    moved: dict[int, nn.Parameter | None] = {}
    for name, number in before:  # a tied one may be left under its second name alone
        moved[number] = moved.get(number) if moved.get(number) is not None else now.get(name)
    for optimizer in optimizers:
        if made.stages is not None:
            made.numbers[id(optimizer)] = ParameterIndex.of(optimizer, moved)
        repoint(optimizer, moved)
    return made


def _mesh(layout: Layout, device: torch.device) -> DeviceMesh:
    """One dimension for each way in which the job is split."""
    sizes = {name: getattr(layout, name) for name in ("pipeline", "replicate", "shard", "tensor")}
    names = tuple(name for name, size in sizes.items() if size > 1)
    return init_device_mesh(device.type, tuple(sizes[name] for name in names), mesh_dim_names=names)
