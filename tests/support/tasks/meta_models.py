"""Models that were made on the meta device, in several processes."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from stoker import Engine, Layout
from stoker.core.tree import local_part
from stoker.nn import Transformer
from stoker.parallel import meta_device
from stoker.resume.weights import load_weights


def make_model(device: str, *, tied: bool = True) -> nn.Module:
    torch.manual_seed(0)
    with torch.device(device):
        return Transformer(16, 6, width=8, layers=2, heads=2, tied=tied)


def materialized(layout: Layout | None, device: str, path: Path | None = None) -> Any:
    """Return the weights before and after a step, and the elements that this process holds."""
    model = make_model(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    torch.manual_seed(0)
    engine = Engine(model, optimizer, nn.CrossEntropyLoss(), layout=layout)
    if path is not None:
        load_weights(engine.model, path)
    before = {name: one.clone() for name, one in engine.weights().items()}
    held = sum(local_part(parameter).numel() for parameter in model.parameters())
    tokens = torch.arange(12).view(2, 6)
    engine.backward(engine.criterion(engine(tokens).flatten(0, 1), tokens.flatten()))
    engine.step()
    return before, engine.weights(), held


def staged(device: str) -> Any:
    """Return the weights of a pipeline, and the elements held here and allocated at once."""
    allocated = []
    before = meta_device._allocated

    def note(old: torch.Tensor, where: torch.device) -> torch.Tensor:
        made = before(old, where)
        allocated.append(old.numel() if isinstance(old, nn.Parameter) else 0)
        return made

    meta_device._allocated = note
    try:
        model = make_model(device, tied=False)
        torch.manual_seed(0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        engine = Engine(model, optimizer, layout=Layout(pipeline=2))
    finally:
        meta_device._allocated = before
    held = sum(parameter.numel() for parameter in model.parameters())
    return engine.weights(), held, sum(allocated)
