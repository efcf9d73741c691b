"""`ShardedLogicalModel`: logical ranks with the state of the optimizer in shards."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from stoker.core import dist
from stoker.core.tree import is_sharded
from stoker.parallel import grad_norm
from stoker.parallel.layout import Layout
from stoker.parallel.logical.model import LogicalModel
from stoker.parallel.shards import FSDPSync


class ShardedLogicalModel(LogicalModel):
    """Logical ranks of a model that is sharded between two steps.

    FSDP2 gathers blocks of the model in every pass, so that all processes must run as many passes.
    Processes have different numbers of logical ranks. So the weights are gathered once per step,
    and each process keeps its shard of the gradients, which are those of `LogicalModel`.

    Args:
        layout: for the number of processes in the job.
        model: sharded in place.
        mesh: all processes.
    """

    def __init__(self, layout: Layout, model: nn.Module, mesh: DeviceMesh) -> None:
        if dist.members() is not None:
            raise ValueError(
                "elastic cannot be combined with shard, because the shards of a process are lost "
                "with it: use replicate=-1, or leave elastic out"
            )
        FSDPSync(model, [model], mesh, layout)
        self._model = model
        self._parts = [part for part in model.modules() if isinstance(part, FSDPModule)]
        for part in self._parts:
            part.set_reshard_after_forward(False)
            part.set_reshard_after_backward(False)
            part.set_requires_gradient_sync(False)
        super().__init__(layout, model)

    def add(self, module: nn.Module) -> None:
        """Add the gradients of another module too, such as a criterion with parameters."""
        if module is self._model:
            self._modules.append(module)  # FSDPSync has sent the weights
        else:
            super().add(module)

    def adapt_optimizer(self, optimizer: Optimizer) -> None:
        """Let an optimizer update shards as it updates complete parameters."""
        if any(group.get("fused") for group in optimizer.param_groups):
            raise ValueError(
                f"{type(optimizer).__name__} has fused=True, whose kernel rounds the last elements "
                "of a shard differently, so that results depend on the number of processes: leave "
                "fused out, or use replicate=-1 instead of shard"
            )
        from stoker.parallel.optimizer_probe import adapt_optimizer  # most need none

        adapt_optimizer(optimizer, has_stages=False)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Within this context, every process has the complete weights. All must enter it."""
        for part in self._parts:
            part.unshard()
        try:
            yield
        finally:
            for part in self._parts:
                part.reshard()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run a training step; at its end, each process has its shard of the gradients."""
        shards = dict(self._model.named_parameters())
        with self.gathered():
            complete = dict(self._model.named_parameters())
            with super().step():
                yield
            for name, parameter in complete.items():
                shards[name].grad = _shard_of(parameter.grad, shards[name])
                parameter.grad = None

    def clip_grad_norm(
        self, parameters: Iterable[nn.Parameter], limit: float, norm_type: float
    ) -> Tensor:
        """Scale gradients to a total norm of at most ``limit``; return the norm before."""
        held = [parameter for parameter in parameters if parameter.grad is not None]
        norm = self.total_norm(held, norm_type)
        grad_norm.clip_to_norm(held, limit, norm)
        return norm

    def clip_grad_value(self, parameters: Iterable[nn.Parameter], limit: float) -> None:
        """Clip each element of the gradients to ``[-limit, limit]``."""
        grad_norm.clip_grad_value(parameters, limit)

    def full_weights(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Return the unsharded weights of the complete model, on the CPU, none sharing memory."""
        gathered = {n: w.full_tensor() if is_sharded(w) else w for n, w in weights.items()}
        return super().full_weights(gathered)

    @property
    def predict_ranks(self) -> int:
        """All logical ranks: every pass gathers the weights, so that all processes run each."""
        return self.data_ranks


def _shard_of(gradient: Tensor | None, parameter: Tensor) -> Tensor | None:
    """Return the rows of a gradient that belong to the shard of this process."""
    if gradient is None or not isinstance(parameter, DTensor):
        return gradient
    mesh = parameter.device_mesh
    rows = -(-len(gradient) // mesh.size())
    part = gradient[mesh.get_local_rank() * rows :][:rows]
    return DTensor.from_local(
        part,
        mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
