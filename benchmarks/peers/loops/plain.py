"""The loop you would write yourself."""

import json
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from work import Work

ABSENT: dict[str, str] = {}


def fit(work: Work) -> None:
    model, optimizer, criterion = work.model, work.optimizer, work.criterion
    model.train()
    for x, y in work.data:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()


defaults = fit  # it has no defaults


def callbacks(work: Work, count: int) -> None:
    """Run the bare loop, to compare with."""
    fit(work)


def accuracy(work: Work) -> float:
    model, optimizer, criterion = work.model, work.optimizer, work.criterion
    right, seen = torch.tensor(0), 0
    model.train()
    for x, y in work.data:
        optimizer.zero_grad()
        scores = model(x)
        loss = criterion(scores, y)
        loss.backward()
        optimizer.step()
        right += (scores.argmax(1) == y).sum()
        seen += y.numel()
    return right.item() / seen


def logging(work: Work) -> None:
    model, optimizer, criterion = work.model, work.optimizer, work.criterion
    model.train()
    with open(work.folder / "metrics.jsonl", "w") as file:
        for step, (x, y) in enumerate(work.data, 1):
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            file.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")


@torch.no_grad()
def evaluate(work: Work) -> float:
    total, seen = torch.tensor(0.0), 0
    work.model.eval()
    for x, y in work.data:
        total += work.criterion(work.model(x), y) * len(y)
        seen += len(y)
    return total.item() / seen


@torch.no_grad()
def predict(work: Work) -> Tensor:
    work.model.eval()
    return torch.cat([work.model(x) for x, _ in work.data])


def checkpoints(work: Work, every: int) -> None:
    """Save the position in the data and the RNG state too."""
    model, optimizer, path = work.model, work.optimizer, work.folder / "last.pt"
    step, per_epoch = 0, len(work.data)
    epoch_random = now = torch.get_rng_state()
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step, epoch_random, now = saved["step"], saved["epoch_random"], saved["random"]
    while step < work.epochs * per_epoch:
        model.train()
        torch.set_rng_state(epoch_random)
        for x, y in rest(work.data, step % per_epoch, now):
            optimizer.zero_grad()
            work.criterion(model(x), y).backward()
            optimizer.step()
            step += 1
            now = torch.get_rng_state()
            if step % per_epoch == 0:
                epoch_random = now
            if step % every == 0:
                random = {"random": now, "epoch_random": epoch_random}
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**states, **random, "step": step}, aside := path.with_suffix(".new"))
                aside.replace(path)


def rest(data: Any, done: int, random: Tensor) -> Iterator[Any]:
    """Yield the remaining batches of an epoch: the others are read and discarded."""
    for number, batch in enumerate(data):
        if number == done and done:
            torch.set_rng_state(random)
        if number >= done:
            yield batch


def job(work: Work) -> float:
    right = math.nan
    work.data = work.by_hand or work.data
    for epoch in range(1, work.epochs + 1):
        fit(work)
        right = held_out(work)
        print(f"epoch {epoch}: accuracy {right:.4f}")
    return right


@torch.no_grad()
def held_out(work: Work) -> float:
    work.model.eval()
    pairs = [(work.model(x).argmax(1) == y).double() for x, y in work.val_data]
    return torch.cat([right.flatten() for right in pairs]).mean().item()
