"""Optimizers of a model whose parameters have been split."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.core.tree import is_sharded


@dataclass(frozen=True)
class ParameterIndex:
    """Which parameters of an optimizer this process holds: in a pipeline, those of its stages.

    An optimizer numbers the parameters it has. A saved state uses the numbers of an optimizer for
    the complete model, so that it is the same in every layout.

    Args:
        groups: all numbers, by parameter group.
        local: the numbers of the parameters in this process, in order.
    """

    groups: list[list[int]]
    local: list[int]

    @classmethod
    def of(
        cls, optimizer: Optimizer, replaced: Mapping[int, nn.Parameter | None]
    ) -> "ParameterIndex":
        """Return the index for an optimizer of the complete model.

        Args:
            optimizer: still with its original parameters.
            replaced: the new parameter by the ``id`` of the old one; None if it is remote.
        """
        groups: list[list[int]] = []
        local: list[int] = []
        count = 0
        for group in optimizer.param_groups:
            groups.append(list(range(count, count + len(group["params"]))))
            local += [
                number
                for number, parameter in zip(groups[-1], group["params"], strict=True)
                if replaced[id(parameter)] is not None
            ]
            count += len(group["params"])
        return cls(groups, local)

    def to_global(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a state dict of the local optimizer with the numbers of the complete model."""
        return {
            "state": {self.local[number]: value for number, value in state["state"].items()},
            "param_groups": [
                {**group, "params": numbers}
                for group, numbers in zip(state["param_groups"], self.groups, strict=True)
            ],
        }

    def to_local(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a state dict of the complete model with the numbers of the local optimizer."""
        local = {number: index for index, number in enumerate(self.local)}
        return {
            "state": {local[n]: value for n, value in state["state"].items() if n in local},
            "param_groups": [
                {**group, "params": [local[n] for n in group["params"] if n in local]}
                for group in state["param_groups"]
            ],
        }


def replace_parameters(optimizer: Optimizer, replaced: Mapping[int, nn.Parameter | None]) -> None:
    """Let an optimizer update the parameters that have replaced its original ones.

    Groups, their order and their options stay. State moves to the new parameter; tensors of the
    parameter's shape are sharded like it, without communication.

    Args:
        optimizer: changed in place.
        replaced: the new parameter by the ``id`` of the old one; None if this process has none.
            Other parameters stay.
    """
    for group in optimizer.param_groups:
        pairs = [(old, replaced.get(id(old), old)) for old in group["params"]]
        group["params"] = [new for _, new in pairs if new is not None]
        for old, new in pairs:
            if old is new or old not in optimizer.state:
                continue
            state = optimizer.state.pop(old)
            if new is not None:
                optimizer.state[new] = {k: _shard_state(v, old, new) for k, v in state.items()}
    avoid_mixed_meshes(optimizer)


def avoid_mixed_meshes(optimizer: Optimizer) -> None:
    """Update tensor by tensor where a group has parameters of several meshes.

    torch's "foreach" and "fused" implementations cannot mix them.
    """
    for group in optimizer.param_groups:
        if len({getattr(parameter, "device_mesh", None) for parameter in group["params"]}) > 1:
            group.update({key: False for key in ("foreach", "fused") if key in group})


def shard_like(tensor: Tensor, like: Any) -> Tensor:
    """Return the local shard of a full tensor; the tensor itself if ``like`` is not sharded."""
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor  # slow to import

    return distribute_tensor(
        tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )


def _shard_state(value: Any, old: Tensor, new: nn.Parameter) -> Any:
    fits = isinstance(value, Tensor) and value.shape == old.shape and old.dim() > 0
    return shard_like(value, new) if fits else value
