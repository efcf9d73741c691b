"""Trainings with optimizers that do not update each element by itself, or that average weights."""

from pathlib import Path
from typing import Any

import schedulefree
import torch
from torch import nn
from torch.optim import SGD, Adafactor, AdamW, Muon, Optimizer
from torch.utils.data import DataLoader

from stoker import Engine, Layout, Trainer, hooks, seed_all
from stoker.nn import Transformer
from support.tasks.every_layout import LENGTH, VOCABULARY, next_token, tokens
from support.tasks.layouts import Break


class Lamb(Optimizer):
    """Scales the update of each parameter by its norm, with a counter in its groups."""

    def __init__(self, params: Any, lr: float = 0.02) -> None:
        super().__init__(params, {"lr": lr, "steps": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["steps"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    moment = self.state[p].setdefault("moment", torch.zeros_like(p))
                    moment.lerp_(p.grad, 1 / group["steps"])
                    p.sub_(moment * group["lr"] * (p.norm() / moment.norm()))


class GlobalNorm(Optimizer):
    """Divides every update by the norm of all gradients."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        held = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = sum(p.grad.norm() ** 2 for p in held) ** 0.5
        for p in held:
            p.sub_(p.grad * (self.param_groups[0]["lr"] / norm))


def make_optimizer(name: str, model: nn.Module) -> Any:
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.ndim == 2]
    others = [p for p in trained if p.ndim != 2]
    match name:
        case "Muon":
            return {"matrices": Muon(matrices, lr=0.02), "others": AdamW(others, lr=0.02)}
        case "Adafactor":
            return Adafactor(trained, lr=0.02)
        case "Lamb":
            return Lamb([{"params": others}, {"params": matrices, "lr": 0.03}])
        case "GlobalNorm":
            return GlobalNorm(trained)
        case "AdamWScheduleFree":
            return schedulefree.AdamWScheduleFree(trained, lr=0.02, warmup_steps=2)
        case "ScheduleFreeWrapper":
            return schedulefree.ScheduleFreeWrapper(
                SGD(trained, lr=0.1, momentum=0.5), momentum=0.8
            )
    raise AssertionError(name)


def optimized(
    layout: Layout | None,
    name: str,
    folder: Path | None = None,
    break_at: int | None = None,
    accumulate: int = 1,
) -> Any:
    """Return weights, results and predictions; None if the training was broken off."""
    seed_all(3)
    model = Transformer(VOCABULARY, LENGTH, width=8, layers=2, heads=2).double()
    for block in model.blocks:
        block.attn.k.bias.requires_grad_(False)  # its gradient is 0, but for rounding
    engine = Engine(model, make_optimizer(name, model), nn.CrossEntropyLoss(), layout=layout)
    parts = engine.layout.data_ranks
    extra: list[Any] = [hooks.Checkpoint("1st", keep=None)] if folder else []
    extra += [Break(break_at)] if break_at is not None else []
    trainer = Trainer(
        engine, [hooks.Loss(), *extra], step=next_token, accumulate=accumulate, run_dir=folder
    )
    train = DataLoader(tokens(), batch_size=12 // parts)
    held_out = DataLoader(tokens()[:11], batch_size=8 // parts)
    try:
        history = trainer.fit(train, held_out, epochs=2, validate_every="2st")
    except KeyboardInterrupt:
        return None
    predicted = trainer.predict(DataLoader(tokens()[:11, :-1], batch_size=8 // parts))
    return engine.weights(), [{**row} for row in history], predicted
