"""What the processes of `test_norm.py` do; each returns plain values."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from stoker.parallel.grad_norm import clip_grad_norm, clip_grad_value, total_norm
from stoker.parallel.optimizers import avoid_mixed_meshes, replace_parameters


def gradients():
    torch.manual_seed(0)
    return [torch.randn(size, dtype=torch.float64) for size in [(4, 6), (5,), (3, 4), (2,), (4, 2)]]


def with_gradient(value):
    parameter = nn.Parameter(torch.zeros_like(value))
    parameter.grad = value
    return parameter


def mixed():
    """Some plain, some of one mesh, some of another, one the same on all of its mesh."""
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
    a, b, c, d, e = gradients()
    return [
        distribute_tensor(a, both, [Shard(0), Shard(1)]),
        distribute_tensor(b, both["tensor"], [Replicate()]),
        distribute_tensor(c, both["tensor"], [Shard(0)]),
        d,
        distribute_tensor(e, both["shard"], [Shard(0)]),
    ]


def norm_of_mixed(norm_type):
    return total_norm(mixed(), norm_type).item()


def clipped_mixed(norm_type):
    parameters = [*map(with_gradient, mixed()), nn.Parameter(torch.zeros(2))]
    norm = clip_grad_norm(parameters, 0.1, norm_type)
    grads = [p.grad for p in parameters if p.grad is not None]
    return norm, [g.full_tensor() if isinstance(g, DTensor) else g for g in grads]


def clipped_values():
    parameters = [*map(with_gradient, mixed())]
    clip_grad_value(parameters, 0.3)
    grads = [p.grad for p in parameters]
    return [g.full_tensor() if isinstance(g, DTensor) else g for g in grads]


def over_stages(norm_type):
    """Each process has parameters of its own; the last gradient is tied and counts on one."""
    rank = dist.get_rank()
    *rest, tied = gradients()
    parameters = [with_gradient(g) for g in [*rest[2 * rank : 2 * rank + 2], tied]]
    counts = lambda parameter: parameter is not parameters[-1] or rank == 0
    norm = clip_grad_norm(parameters, 0.1, norm_type, groups=[dist.group.WORLD], counts=counts)
    return norm, [p.grad for p in parameters]


def a_stage_without_gradients():
    parameters = [with_gradient(g) for g in gradients()] if dist.get_rank() else []
    return clip_grad_norm(parameters, 0.1, groups=[dist.group.WORLD]).item()


def settled(name):
    """The options of a group of one mesh and of a mixed one, and whether the latter steps."""
    mesh = init_device_mesh("cpu", (2,))
    spread = [with_gradient(distribute_tensor(g, mesh, [Shard(0)])) for g in gradients()[:2]]
    plain = [with_gradient(g) for g in gradients()[2:]]
    groups = [{"params": spread[:1]}, {"params": [spread[1], *plain]}]
    make = getattr(torch.optim, name)
    optimizer = make(groups, lr=0.1, fused=True) if name == "AdamW" else make(groups, lr=0.1)
    avoid_mixed_meshes(optimizer)
    optimizer.step()
    return [(group.get("foreach"), group.get("fused")) for group in optimizer.param_groups]


def repointed_order():
    """Groups after one parameter has been replaced, one dropped and one left alone."""
    mesh = init_device_mesh("cpu", (2,))
    a, b, c = (with_gradient(g) for g in gradients()[:3])
    optimizer = torch.optim.AdamW([{"params": [a, b]}, {"params": [c], "lr": 0.5}])
    optimizer.step()
    average = optimizer.state[a]["exp_avg"].clone()
    new = nn.Parameter(distribute_tensor(a.detach(), mesh, [Shard(1)]))
    replace_parameters(optimizer, {id(a): new, id(b): None})
    state = optimizer.state[new]
    return {
        "params": [[p is new or p is c for p in g["params"]] for g in optimizer.param_groups],
        "rates": [group["lr"] for group in optimizer.param_groups],
        "states": len(optimizer.state),
        "sharded": state["exp_avg"].placements == new.placements,
        "same": torch.equal(state["exp_avg"].full_tensor(), average),
        "step": state["step"].item(),
    }
