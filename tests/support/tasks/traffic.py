"""What processes send in the tests of traffic."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import Engine, Layout, Trainer
from stoker.core.op_counter import counted
from stoker.parallel import LogicalModel

STEPS = 4


def of_logical_ranks(processes: int, ranks: int) -> dict[str, float]:
    """Return the bytes and collectives of a step, and the bytes of an all-reduce of its gradients.

    The first steps of a run are left out.
    """
    found = [_of_steps(ranks, steps) for steps in (STEPS, 2 * STEPS)]
    elements = sum(p.numel() for p in _model().parameters())
    each = [(after - before) / STEPS for before, after in zip(*found, strict=True)]
    all_reduce = 2 * (processes - 1) / processes * elements * 4
    return {"bytes": each[0], "collectives": each[1], "all-reduce": all_reduce}


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))


def _of_steps(ranks: int, steps: int) -> tuple[int, int]:
    data = TensorDataset(torch.zeros(ranks * steps, 64), torch.zeros(ranks * steps, 64))
    model = _model()
    layout = Layout(replicate=-1, logical_ranks=ranks)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    engine = Engine(model, optimizer, nn.MSELoss(), device="cpu", layout=layout)
    with counted() as counts:
        Trainer(engine, []).fit(DataLoader(data, batch_size=1), epochs=1)
    assert isinstance(engine.parallel_model, LogicalModel)
    return engine.parallel_model.bytes_sent, counts.collectives
