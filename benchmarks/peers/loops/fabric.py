"""Lightning Fabric: your own loop."""

import math
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import CSVLogger
from torch import Tensor
from torchmetrics.classification import MulticlassAccuracy
from work import Work

ABSENT = {"defaults": "the loop is yours, and nothing is enabled by default"}


def set_up(work: Work, **more: Any) -> tuple[Fabric, Any, Any, Any]:
    fabric = Fabric(accelerator="cpu", devices=1, **more)
    fabric.launch()
    model, optimizer = fabric.setup(work.model, work.optimizer)
    ready = isinstance(work.data, list)
    return fabric, model, optimizer, work.data if ready else fabric.setup_dataloaders(work.data)


def fit(work: Work) -> None:
    fabric, model, optimizer, data = set_up(work)
    model.train()
    for x, y in data:
        optimizer.zero_grad()
        fabric.backward(work.criterion(model(x), y))
        optimizer.step()


def accuracy(work: Work) -> float:
    fabric, model, optimizer, data = set_up(work)
    right = MulticlassAccuracy(work.classes, average="micro")
    model.train()
    for x, y in data:
        optimizer.zero_grad()
        scores = model(x)
        fabric.backward(work.criterion(scores, y))
        optimizer.step()
        right.update(scores, y)
    return float(right.compute())


def callbacks(work: Work, count: int) -> None:
    """Call them from the loop."""
    idle = [type(f"Idle{number}", (), {})() for number in range(count)]
    fabric, model, optimizer, data = set_up(work, callbacks=idle)
    model.train()
    for number, (x, y) in enumerate(data):
        optimizer.zero_grad()
        loss = work.criterion(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        fabric.call("on_train_batch_end", outputs=loss, batch=(x, y), batch_idx=number)


def logging(work: Work) -> None:
    fabric, model, optimizer, data = set_up(work, loggers=CSVLogger(work.folder))
    model.train()
    for number, (x, y) in enumerate(data):
        optimizer.zero_grad()
        loss = work.criterion(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        fabric.log("loss", loss, number)


@torch.no_grad()
def evaluate(work: Work) -> float:
    _, model, _, data = set_up(work)
    total, seen = torch.tensor(0.0), 0
    model.eval()
    for x, y in data:
        total += work.criterion(model(x), y) * len(y)
        seen += len(y)
    return total.item() / seen


@torch.no_grad()
def predict(work: Work) -> Tensor:
    _, model, _, data = set_up(work)
    model.eval()
    return torch.cat([model(x) for x, _ in data])


def checkpoints(work: Work, every: int) -> None:
    """Follow its guide: save model, optimizer and counters, and skip seen batches."""
    fabric, model, optimizer, data = set_up(work)
    path = work.folder / "last.ckpt"
    state = {"model": model, "optimizer": optimizer, "step": 0}
    if path.exists():
        fabric.load(path, state)
    model.train()
    first, step = divmod(state["step"], len(data))
    for _ in range(first, work.epochs):
        for number, (x, y) in enumerate(data):
            if number < step:
                continue
            optimizer.zero_grad()
            fabric.backward(work.criterion(model(x), y))
            optimizer.step()
            state["step"] += 1
            if state["step"] % every == 0:
                fabric.save(path, state)
        step = 0


def job(work: Work) -> float:
    fabric, model, optimizer, data = set_up(work)
    val_data = fabric.setup_dataloaders(work.val_data)
    right = MulticlassAccuracy(work.classes, average="micro")
    found = math.nan
    for epoch in range(1, work.epochs + 1):
        model.train()
        for x, y in data:
            optimizer.zero_grad()
            fabric.backward(work.criterion(model(x), y))
            optimizer.step()
        found = held_out(model, val_data, right)
        fabric.print(f"epoch {epoch}: accuracy {found:.4f}")
    return found


@torch.no_grad()
def held_out(model: Any, data: Any, right: MulticlassAccuracy) -> float:
    model.eval()
    right.reset()
    for x, y in data:
        right.update(model(x), y)
    return float(right.compute())
