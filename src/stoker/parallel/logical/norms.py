"""Norms of gradients that do not depend on where shards end."""

from collections.abc import Sequence

import torch
import torch.distributed as c10d
from torch import Tensor

from stoker.core.tree import is_sharded, local_part


@torch.no_grad()
def norm_of_rows(gradients: Sequence[Tensor], norm_type: float) -> Tensor:
    """Return the norm of gradients as one vector, the same for complete gradients and for shards.

    It is the norm of the norms of gradients, which are those of the norms of their rows: a shard
    has complete rows. If some are sharded, all processes must call it.
    """
    if not gradients:
        return torch.zeros(())
    rows = [_row_norms(local_part(gradient), norm_type) for gradient in gradients]
    if any(is_sharded(gradient) for gradient in gradients):
        rows = _all_rows(gradients, rows)
    norms = [torch.linalg.vector_norm(one, norm_type) for one in rows]
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    return total


def _row_norms(tensor: Tensor, norm_type: float) -> Tensor:
    if tensor.ndim < 2:
        return tensor.reshape(-1).abs()
    norms: Tensor = torch.linalg.vector_norm(tensor.flatten(1), norm_type, dim=1)
    return norms


def _all_rows(gradients: Sequence[Tensor], rows: Sequence[Tensor]) -> list[Tensor]:
    """Return the norms of all rows, of which shards have some."""
    complete = []
    for gradient, own in zip(gradients, rows, strict=True):
        if not is_sharded(gradient):
            complete.append(own)
            continue
        mesh = gradient.device_mesh  # type: ignore[attr-defined]
        count = -(-len(gradient) // mesh.size())
        found = own.new_zeros(mesh.size(), count)
        found[mesh.get_local_rank(), : len(own)] = own
        complete.append(found.view(-1)[: len(gradient)])
    flat = torch.cat([one for one, g in zip(complete, gradients, strict=True) if is_sharded(g)])
    c10d.all_reduce(flat)  # adds zeros, which changes nothing
    parts = iter(torch.split(flat, [len(g) for g in gradients if is_sharded(g)]))
    return [
        next(parts).to(one.dtype) if is_sharded(g) else one
        for one, g in zip(complete, gradients, strict=True)
    ]
