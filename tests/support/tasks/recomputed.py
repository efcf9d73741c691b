"""Gradients of a model whose activations are computed again."""

from typing import Any

import torch
from torch import nn

from stoker import Engine, Layout
from stoker.core.tree import local_part
from stoker.nn import Transformer


def gradients_in(layout: Layout, how: Any) -> Any:
    """Return the gradients after two accumulated micro-batches, with dropout."""
    torch.manual_seed(0)
    model = Transformer(17, 6, width=8, layers=3, heads=2, dropout=0.2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    engine = Engine(
        model, optimizer, nn.CrossEntropyLoss(), layout=layout, activation_checkpointing=how
    )
    torch.manual_seed(1 + engine.parallel_model.data_rank)
    tokens = torch.randint(17, (4, 6))
    with engine.no_sync():
        engine.backward(engine(tokens[:2]).square().mean())
    engine.backward(engine(tokens[2:]).square().mean())
    return {n: local_part(p.grad).tolist() for n, p in model.named_parameters()}
