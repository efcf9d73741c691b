"""What processes train with repeated blocks compiled, in several layouts."""

from typing import Any

import torch
from torch import nn

from stoker import Engine, Layout, Trainer
from stoker.nn import Transformer


def trained(layout: Layout | None, compile: bool | str) -> dict[str, Any]:
    """The weights after a few steps, and how many graphs were compiled."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = Transformer(20, 8, width=16, layers=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def judge(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())

    engine = Engine(model, optimizer, judge, layout=layout, compile=compile)
    tokens = torch.randint(0, 20, (24, 9), generator=torch.Generator().manual_seed(1))
    batches = [
        (rows[:, :-1], rows[:, 1:]) for rows in tokens.split(4 // engine.data_shard.world_size)
    ]
    Trainer(engine, []).fit(batches, max_steps=3)
    graphs = counters["stats"]["unique_graphs"]
    return {"weights": engine.weights(), "graphs": graphs, "keys": [*engine.model.state_dict()]}
