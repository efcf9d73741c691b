"""What two processes do in `checkpoint/test_ranks.py`; each returns plain values."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from stoker.checkpoint import CheckpointError, Checkpoints
from stoker.checkpoint.format.manifest import Manifest
from stoker.storage import crash_points


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.manual_seed(1)
    for _ in range(2):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def sharded() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = fully_shard(net(), mesh=init_device_mesh("cpu", (2,)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}


def tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, dict):
        return [tensor for value in tree.values() for tensor in tensors(value)]
    return [tree] if isinstance(tree, torch.Tensor) else []


def full(tree: Any) -> list[torch.Tensor]:
    return [t.full_tensor() if isinstance(t, DTensor) else t.clone() for t in tensors(tree)]


def shards_of_two(rank: int, folder: Path) -> Any:
    """Save shards, change the weights, load: as before, and sharded as before."""
    model, optimizer = sharded()
    train(model, optimizer)
    kept = state(model, optimizer)
    with Checkpoints(folder / "two") as checkpoints:
        for step in (1, 2):
            path = checkpoints.save(step, kept, {"rank": rank, "rng": torch.ones(rank + 1)})
        checkpoints.wait()
        unsharded = full(kept)
        for tensor in tensors(kept):
            tensor.zero_()
        assert checkpoints.newest() == path
        found = checkpoints.load(path, into=kept)
    same_types = [
        type(a) is type(b) for a, b in zip(tensors(found.shared), tensors(kept), strict=True)
    ]
    return {
        "equal": all(map(torch.equal, full(found.shared), unsharded)),
        "same_types": all(same_types)
        and any(isinstance(t, DTensor) for t in tensors(found.shared)),
        "own": (found.own["rank"], found.own["rng"].tolist(), found.world_size),
        "full": unsharded,
    }


def one_to_two(rank: int, folder: Path) -> Any:
    """What one process saved, loaded into shards, by rows and by columns."""
    model, optimizer = sharded()
    train(model, optimizer)
    path = folder / "one" / "step-00000001"
    found = Checkpoints(folder / "one").load(path, into=state(model, optimizer))
    model.load_state_dict(found.shared["model"])
    mesh = init_device_mesh("cpu", (2,))
    columns = {"model": {"0.weight": distribute_tensor(torch.zeros(5, 4), mesh, [Shard(1)])}}
    weight = Checkpoints(folder / "one").load(path, into=columns).shared["model"]["0.weight"]
    return {
        "full": full(found.shared["model"]),
        "columns": weight.to_local().tolist(),
        "own": found.own is None,
    }


def replicas(rank: int, folder: Path) -> Any:
    """Save replicated tensors, which are written once, into one file."""
    mesh = init_device_mesh("cpu", (2,))
    copy = distribute_tensor(torch.ones(3), mesh, [Replicate()])
    with Checkpoints(folder / "same") as checkpoints:
        path = checkpoints.save(1, {"model": net().state_dict(), "copy": copy}, wait=True)
    return sorted(file.name for file in path.iterdir())


def halves(rank: int, folder: Path) -> Any:
    """Two stages of a pipeline: each has keys that the other lacks."""
    model = {f"{rank}.weight": torch.full((2,), rank), "shared": torch.ones(1)}
    with Checkpoints(folder / "halves") as checkpoints:
        path = checkpoints.save(1, {"model": model, "names": {f"stage{rank}": [rank]}}, wait=True)
        found = checkpoints.load(path).shared
    return {name: tensor.tolist() for name, tensor in found["model"].items()}, found["names"]


def contradiction(rank: int, folder: Path) -> Any:
    with Checkpoints(folder / "odds") as checkpoints:
        try:
            checkpoints.save(1, {"run": {"seed": rank}})
        except CheckpointError as error:
            return str(error)


def one_refuses(rank: int, folder: Path) -> Any:
    """A state that only one process cannot save fails on both, and the next save works."""
    with Checkpoints(folder / "refuses") as checkpoints:
        try:
            checkpoints.save(1, {}, {"mine": print if rank == 1 else 0})
            message = ""
        except (TypeError, CheckpointError) as error:
            message = f"{type(error).__name__}: {error}"
        checkpoints.save(2, {}, {"mine": rank}, wait=True)
        return message, [path.name for path in checkpoints.list()]


def one_cannot_write(rank: int, folder: Path) -> Any:
    with Checkpoints(folder / "disk") as checkpoints:
        checkpoints.save(1, {"a": 1}, wait=True)
        real = crash_points.at
        crash_points.at = fail if rank == 1 else real
        try:
            checkpoints.save(2, {"a": 1}, wait=True)
            message = ""
        except CheckpointError as error:
            message = str(error)
        crash_points.at = real
        dist.barrier()
        return message, sorted(path.name for path in (folder / "disk").iterdir())


def fail(point: str) -> None:
    if point == "file-written":
        raise OSError(5, "Input/output error")


def another_shape(rank: int, folder: Path) -> Any:
    mesh = init_device_mesh("cpu", (2,))
    wrong = {"model": {"0.weight": distribute_tensor(torch.zeros(6, 4), mesh, [Shard(0)])}}
    try:
        Checkpoints(folder / "one").load(folder / "one" / "step-00000001", into=wrong)
    except CheckpointError as error:
        return str(error)


def pieces_in_the_manifest(rank: int, folder: Path) -> Any:
    manifest = Manifest.read(folder / "two" / "step-00000002")
    return sorted(manifest.files), sorted(manifest.split)


CHECKS = [
    shards_of_two,
    one_to_two,
    replicas,
    halves,
    contradiction,
    one_refuses,
    one_cannot_write,
    another_shape,
    pieces_in_the_manifest,
]
