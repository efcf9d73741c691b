"""Realistic work: a transformer of 11 million parameters on text."""

import torch
from text_job import CONTEXT, Reader, data
from torch import nn
from torch.utils.data import DataLoader, Subset
from work import Watch, Watched, Work, held_out


def net() -> nn.Module:
    return Reader(data()[1], CONTEXT, width=384, depth=6, heads=6)


def task(watch: Watch) -> Work:
    """Build 2 epochs of 16 steps, of 512 tokens each."""
    parts, letters = data()
    torch.manual_seed(0)
    model = Watched(net(), watch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    train = DataLoader(Subset(parts["train"], range(128)), 8, shuffle=True)
    test = held_out(Subset(parts["test"], range(32)), 16)
    return Work(watch, model, optimizer, train, test, 2, 8, letters, losses=True)
