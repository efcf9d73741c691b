"""`ParallelModel`: a model as its layout runs it in this process."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar
from weakref import WeakSet

import torch
import torch.distributed as c10d
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.optim import Optimizer

from stoker.core import dist
from stoker.core.log import get_logger
from stoker.core.seed import seed_shard
from stoker.core.tree import is_sharded, map_tensors
from stoker.core.types import Batch
from stoker.parallel.batch_norm import BatchStatistics, sync_batch_norms
from stoker.parallel.gradients import AllReduceSync, DDPSync, GradientSync
from stoker.parallel.layout import MESH_ORDER, Layout
from stoker.parallel.meta_device import is_meta, materialize
from stoker.parallel.optimizers import ParameterIndex, replace_parameters
from stoker.parallel.pipeline.split import split_model
from stoker.parallel.pipeline.stages import Stages
from stoker.parallel.ties import check_ties, find_shared_memory, tied_names

T = TypeVar("T")

_log = get_logger()


class ParallelModel:
    """A model as it runs in a single process; `Distributed` is one of several.

    Callers use these methods and never test which layout they have.

    Attributes:
        data_rank: which shard of every batch this process reads.
        data_ranks: the number of such shards.
        data_group: the processes that read the other shards; None if there are none.
        logical_ranks: the logical ranks that this process executes; None in a layout without them.
        stages: the pipeline stages of this process; None without a pipeline.
        parameter_indices: by ``id`` of an optimizer, which parameters it holds, if not all.
    """

    data_rank, data_ranks = 0, 1
    data_group: c10d.ProcessGroup | None = None
    logical_ranks: range | None = None
    stages: Stages | None = None

    def __init__(self) -> None:
        self.parameter_indices: dict[int, ParameterIndex] = {}

    def wrap(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the forward pass of the model as it runs in this process."""
        return forward

    def add(self, module: nn.Module) -> None:
        """Synchronize the gradients of another module too, such as a criterion with parameters."""

    def adapt_optimizer(self, optimizer: Optimizer) -> None:
        """Let an optimizer update split parameters as it updates complete ones."""

    def seed(self, seed: int | None) -> None:
        """Seed all generators for the shard of the data that this process reads."""
        seed_shard(seed, self.data_rank)

    def observing(self) -> AbstractContextManager[None]:
        """Return the context in which hooks observe a run."""
        return nullcontext()

    def start_mean(self, numbers: Sequence[float]) -> Callable[[], float]:
        """Begin to add numbers over all processes; return a function that waits for their mean."""
        wait = dist.start_sum(float(sum(numbers)))
        return lambda: wait() / dist.world_size()

    @property
    def predict_ranks(self) -> int:
        """The number of logical ranks whose data this process predicts."""
        return 1

    def complete(self, work: Callable[[], T], repeat: Callable[[], None]) -> T:
        """Return what the work returns, which all processes do together."""
        return work()

    @contextmanager
    def sync(self, *, enabled: bool) -> Iterator[None]:
        """Within this context, backward does or does not synchronize gradients."""
        yield

    def after_backward(self) -> None:
        """Synchronize the gradients that the backward pass has not."""

    def reduce_gradients(self) -> None:
        """Synchronize gradients after backward passes that did not; for copies of the model."""

    def sync_buffers(self) -> None:
        """Copy buffers from the first process, so that all evaluate the same model."""

    def begin_batch(self, size: float) -> None:
        """Prepare for the forward pass of a batch of that weight; 0 for a padding batch."""

    def average(self, weight: float, *tensors: Tensor) -> None:
        """Replace tensors by their weighted mean over the data ranks. All of these must call it."""

    def gather_lockstep(self, *numbers: float) -> list[list[float]]:
        """Return the numbers of all processes that must run the model as often as this one.

        Shards need each other for every pass. All of these processes must call it.
        """
        return [list(numbers)]

    def clip_grad_norm(
        self, parameters: Iterable[nn.Parameter], limit: float, norm_type: float
    ) -> Tensor:
        """Scale gradients to a total norm of at most ``limit``; return the norm before."""
        return nn.utils.clip_grad_norm_(parameters, limit, norm_type)

    def clip_grad_value(self, parameters: Iterable[nn.Parameter], limit: float) -> None:
        """Clip each element of the gradients to ``[-limit, limit]``."""
        nn.utils.clip_grad_value_(parameters, limit)

    def total_norm(self, parameters: Iterable[nn.Parameter], norm_type: float = 2.0) -> Tensor:
        """Return the norm of all gradients, over all processes."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        return nn.utils.get_total_norm(gradients, norm_type) if gradients else torch.zeros(())

    def full_weights(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Return the unsharded weights of the complete model, on the CPU, none sharing memory.

        Extra state of modules that is not a tensor is returned as it is.
        """
        found: dict[str, Any] = {}
        seen: set[int] = set()
        for name, weight in weights.items():
            if not isinstance(weight, Tensor):
                found[name] = weight
                continue
            tensor = weight.detach().cpu().contiguous()
            address = tensor.untyped_storage().data_ptr()
            found[name] = tensor.clone() if address in seen else tensor
            seen.add(address)
        return found

    def gather_outputs(
        self, outputs: list[Any], merge: Callable[[list[list[Any]]], list[Any]]
    ) -> list[Any]:
        """Return the outputs of all processes; ``merge`` orders those of the data ranks."""
        return outputs

    def place(self, batch: Batch, device: torch.device) -> Batch:
        """Return the batch with its tensors on the device."""
        if hasattr(batch, "to") and not isinstance(batch, Tensor):
            return batch.to(device)
        # Only a copy from pinned memory is safe, and faster, without waiting for it.
        return map_tensors(lambda t: t.to(device, non_blocking=t.is_pinned()), batch)


class Distributed(ParallelModel):
    """A model that several processes run together.

    Args:
        layout: for the number of processes in the job.
        model: split in place.
        device: where the model is.
        one_optimizer: whether a single optimizer trains the model, so that each step runs all of
            it.
    """

    def __init__(
        self, layout: Layout, model: nn.Module, device: torch.device, *, one_optimizer: bool
    ) -> None:
        super().__init__()
        self._mesh = _make_mesh(layout, device)
        data_dims = tuple(name for name in ("replicate", "shard") if name in self._dims)
        self.data_ranks = layout.data_ranks
        self.data_group = self._group(data_dims) if data_dims else None
        self.data_rank = c10d.get_rank(self.data_group) if data_dims else 0
        self._only_replicates = self._dims == ("replicate",)
        self._adapted: WeakSet[Optimizer] = WeakSet()
        self._statistics: BatchStatistics | None = None
        if layout.sync_batchnorm and self.data_group is not None:
            self._statistics = sync_batch_norms(model, self.data_group)
        self._syncs = [self._split(layout, model, device, one_optimizer=one_optimizer)]

    def _split(
        self, layout: Layout, model: nn.Module, device: torch.device, *, one_optimizer: bool
    ) -> GradientSync:
        """Split the model: layers first, then stages, then the parameters of each."""
        if layout.tensor > 1:
            from stoker.parallel.tensor.split import split_layers  # slow to import

            split_layers(
                model,
                self._mesh["tensor"],
                layout.plan,
                sequence_parallel=layout.sequence_parallel,
                loss_parallel=layout.loss_parallel,
            )
        if layout.context > 1:
            from stoker.parallel.context import split_sequence  # slow to import

            split_sequence(model, self._mesh.get_group("context"))
        stages: list[nn.Module] = [model]
        if layout.pipeline > 1:
            self.stages = split_model(
                model,
                self._mesh.get_group("pipeline"),
                device,
                virtual=layout.stages,
                sequence=layout.sequence,
                split=layout.split,
            )
            stages = list(self.stages.local.values())
            _warn_about_statistics(model)
        if layout.shard > 1:
            from stoker.parallel.shards import FSDPSync  # slow to import

            dims = tuple(n for n in ("replicate", "context", "shard") if n in self._dims)
            return FSDPSync(model, stages, self._mesh[dims], layout)
        trained = any(parameter.requires_grad for parameter in model.parameters())
        if self._only_replicates and one_optimizer and trained:
            return DDPSync(model, self._mesh.get_group("replicate"), unused=layout.unused)
        copies = tuple(name for name in ("replicate", "context") if name in self._dims)
        return AllReduceSync(model, self._group(copies)) if copies else GradientSync()

    def wrap(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the forward pass of the model as it runs in this process."""
        return self._syncs[0].wrap(forward)

    def add(self, module: nn.Module) -> None:
        """Synchronize the gradients of another module too, such as a criterion with parameters."""
        if self.data_group is not None and any(True for _ in module.parameters()):
            self._syncs.append(AllReduceSync(module, self.data_group))

    def adapt_optimizer(self, optimizer: Optimizer) -> None:
        """Let an optimizer update split parameters as it updates complete ones."""
        if not self._only_replicates and optimizer not in self._adapted:
            from stoker.parallel.optimizer_probe import adapt_optimizer  # most need none

            self._adapted.add(optimizer)
            adapt_optimizer(optimizer, has_stages=self.stages is not None)

    @contextmanager
    def sync(self, *, enabled: bool) -> Iterator[None]:
        """Within this context, backward does or does not synchronize gradients."""
        with ExitStack() as stack:
            for sync in self._syncs:
                stack.enter_context(sync.sync(enabled=enabled))
            yield

    def after_backward(self) -> None:
        """Synchronize the gradients that the backward pass has not."""
        for sync in self._syncs:
            sync.after_backward()

    def reduce_gradients(self) -> None:
        """Synchronize gradients after backward passes that did not; for copies of the model."""
        for sync in self._syncs:
            sync.reduce()

    def sync_buffers(self) -> None:
        """Copy buffers from the first process, so that all evaluate the same model."""
        for sync in self._syncs:
            sync.sync_buffers()

    def begin_batch(self, size: float) -> None:
        """Prepare for the forward pass of a batch of that weight; 0 for a padding batch."""
        if self._statistics is not None:
            self._statistics.counted = size > 0

    def average(self, weight: float, *tensors: Tensor) -> None:
        """Replace tensors by their weighted mean over the data ranks. All of these must call it."""
        if self.data_group is None:
            return
        total = torch.tensor(weight, dtype=torch.float64, device=tensors[0].device)
        c10d.all_reduce(total, group=self.data_group)
        for tensor in tensors:
            share = tensor.detach() * (weight / float(total))
            c10d.all_reduce(share, group=self.data_group)
            tensor.copy_(share)

    def gather_lockstep(self, *numbers: float) -> list[list[float]]:
        """Return the numbers of all processes that must run the model as often as this one."""
        if "shard" in self._dims:
            return dist.all_gather_floats(*numbers)
        return super().gather_lockstep(*numbers)

    def clip_grad_norm(
        self, parameters: Iterable[nn.Parameter], limit: float, norm_type: float
    ) -> Tensor:
        """Scale gradients to a total norm of at most ``limit``; return the norm before."""
        if self._only_replicates:
            return super().clip_grad_norm(parameters, limit, norm_type)
        from stoker.parallel import grad_norm  # slow to import

        return grad_norm.clip_grad_norm(
            parameters, limit, norm_type, groups=self._model_groups(), counts=self._counts
        )

    def clip_grad_value(self, parameters: Iterable[nn.Parameter], limit: float) -> None:
        """Clip each element of the gradients to ``[-limit, limit]``."""
        from stoker.parallel import grad_norm  # slow to import

        grad_norm.clip_grad_value(parameters, limit)

    def total_norm(self, parameters: Iterable[nn.Parameter], norm_type: float = 2.0) -> Tensor:
        """Return the norm of all gradients, over all processes."""
        if self._only_replicates:
            return super().total_norm(parameters, norm_type)
        from stoker.parallel import grad_norm  # slow to import

        gradients = [p.grad for p in parameters if p.grad is not None and self._counts(p)]
        return grad_norm.total_norm(gradients, norm_type, groups=self._model_groups())

    def full_weights(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Return the unsharded weights of the complete model, on the CPU, none sharing memory."""
        gathered: dict[str, Any] = dict(weights)
        for name, weight in gathered.items():
            gathered[name] = weight.full_tensor() if is_sharded(weight) else weight
        found = super().full_weights(gathered)
        if self.stages is None:
            return found
        everywhere = dist.all_gather_object(found)
        return {name: weight for stage in everywhere for name, weight in stage.items()}

    def gather_outputs(
        self, outputs: list[Any], merge: Callable[[list[list[Any]]], list[Any]]
    ) -> list[Any]:
        """Return the outputs of all processes; ``merge`` orders those of the data ranks."""
        has_outputs = self.stages is None or self.stages.has_last
        found = dist.all_gather_object((self.data_rank, outputs) if has_outputs else None)
        by_rank = dict(one for one in reversed(found) if one is not None)
        return merge([by_rank[rank] for rank in range(self.data_ranks)])

    @property
    def _dims(self) -> tuple[str, ...]:
        return self._mesh.mesh_dim_names or ()

    def _group(self, dims: tuple[str, ...]) -> c10d.ProcessGroup:
        """Return the processes that differ from this one in these dimensions only."""
        mesh = self._mesh
        return mesh[dims]._flatten().get_group() if len(dims) > 1 else mesh.get_group(dims[0])

    def _model_groups(self) -> list[c10d.ProcessGroup]:
        """Return the groups that hold further parameters of this copy of the model."""
        return [] if self.stages is None else [self.stages.group]

    def _counts(self, parameter: nn.Parameter) -> bool:
        return self.stages is None or self.stages.owns(parameter)


def wrap_model(
    layout: Layout, model: nn.Module, device: torch.device, optimizers: Iterable[Optimizer]
) -> ParallelModel:
    """Split a model in place by its layout, and let its optimizers update the new parameters.

    A model on the meta device gets its values: of shards and stages, each process allocates only
    its own.
    """
    optimizers = list(optimizers)
    divides = layout.shard > 1 or layout.pipeline > 1
    if (not divides or layout.tensor > 1) and is_meta(model) and device.type != "meta":
        before = [(name, id(p)) for name, p in model.named_parameters(remove_duplicate=False)]
        materialize(model, device)
        _replace(optimizers, before, model)
    if layout.logical_ranks is not None and layout.shard == 1:
        from stoker.parallel.logical.model import LogicalModel  # it extends ParallelModel

        return LogicalModel(layout, model)
    if layout.processes == 1:
        return ParallelModel()
    before = [(name, id(p)) for name, p in model.named_parameters(remove_duplicate=False)]
    tied, memory = tied_names(model), find_shared_memory(model)
    made = _split(layout, model, device, one_optimizer=len(optimizers) == 1)
    check_ties(model, tied, memory, str(layout))
    _replace(optimizers, before, model, made)
    return made


def _split(
    layout: Layout, model: nn.Module, device: torch.device, *, one_optimizer: bool
) -> ParallelModel:
    if layout.logical_ranks is None:
        return Distributed(layout, model, device, one_optimizer=one_optimizer)
    from stoker.parallel.logical.sharded import ShardedLogicalModel  # slow to import

    return ShardedLogicalModel(layout, model, _make_mesh(layout, device))


def _replace(
    optimizers: Iterable[Optimizer],
    before: list[tuple[str, int]],
    model: nn.Module,
    made: ParallelModel | None = None,
) -> None:
    """Let optimizers update the parameters that have replaced those of ``before``, by name."""
    now = dict(model.named_parameters(remove_duplicate=False))
    replaced: dict[int, nn.Parameter | None] = {}
    for name, key in before:  # a tied parameter may remain under its second name only
        replaced[key] = replaced.get(key) if replaced.get(key) is not None else now.get(name)
    for optimizer in optimizers:
        if made is not None and made.stages is not None:
            made.parameter_indices[id(optimizer)] = ParameterIndex.of(optimizer, replaced)
        replace_parameters(optimizer, replaced)


def _warn_about_statistics(model: nn.Module) -> None:
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        _log.warning(
            "batch norms in a pipeline compute their statistics over micro-batches, so the model "
            "trains differently than in one process"
        )


def _make_mesh(layout: Layout, device: torch.device) -> DeviceMesh:
    """Return a mesh with one dimension for each way in which the job is split."""
    sizes = {name: getattr(layout, name) for name in MESH_ORDER}
    dims = tuple(name for name, size in sizes.items() if size > 1)
    return init_device_mesh(device.type, tuple(sizes[dim] for dim in dims), mesh_dim_names=dims)
