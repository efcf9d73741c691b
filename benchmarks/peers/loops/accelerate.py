"""Accelerate: your own loop."""

import math
from typing import IO, Any

import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from accelerate.utils import DataLoaderConfiguration
from torch import Tensor
from torchmetrics.classification import MulticlassAccuracy
from work import Work

ABSENT = {
    "defaults": "the loop is yours, and nothing is enabled by default",
    "callbacks": "it has no callbacks",
}


def set_up(work: Work, **more: Any) -> tuple[Accelerator, Any, Any, Any]:
    accelerator = Accelerator(cpu=True, **more)
    if isinstance(work.data, list):
        model, optimizer = accelerator.prepare(work.model, work.optimizer)
        return accelerator, model, optimizer, work.data
    return accelerator, *accelerator.prepare(work.model, work.optimizer, work.data)


def fit(work: Work) -> None:
    accelerator, model, optimizer, data = set_up(work)
    model.train()
    for x, y in data:
        optimizer.zero_grad()
        accelerator.backward(work.criterion(model(x), y))
        optimizer.step()


def accuracy(work: Work) -> float:
    accelerator, model, optimizer, data = set_up(work)
    right = MulticlassAccuracy(work.classes, average="micro")
    model.train()
    for x, y in data:
        optimizer.zero_grad()
        scores = model(x)
        accelerator.backward(work.criterion(scores, y))
        optimizer.step()
        right.update(scores, y)
    return float(right.compute())


class Lines(GeneralTracker):
    """Its trackers are services, so a custom one writes lines, as its guide shows."""

    name = "lines"
    requires_logging_directory = False

    def __init__(self, file: IO[str]) -> None:
        super().__init__()
        self._file = file

    @property
    def tracker(self) -> Any:
        return self._file

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        pass

    def log(self, values: dict[str, Any], step: int | None = None, **more: Any) -> None:
        self._file.write(f"{step},{values['loss']}\n")


def logging(work: Work) -> None:
    with open(work.folder / "metrics.csv", "w") as file:
        accelerator, model, optimizer, data = set_up(work, log_with=Lines(file))
        accelerator.init_trackers("run")
        model.train()
        for number, (x, y) in enumerate(data):
            optimizer.zero_grad()
            loss = work.criterion(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            accelerator.log({"loss": loss.item()}, step=number)
        accelerator.end_training()


@torch.no_grad()
def evaluate(work: Work) -> float:
    accelerator, model, _, data = set_up(work)
    total, seen = torch.tensor(0.0), 0
    model.eval()
    for x, y in data:
        scores, targets = accelerator.gather_for_metrics((model(x), y))
        total += work.criterion(scores, targets) * len(targets)
        seen += len(targets)
    return total.item() / seen


@torch.no_grad()
def predict(work: Work) -> Tensor:
    accelerator, model, _, data = set_up(work)
    model.eval()
    return torch.cat([accelerator.gather_for_metrics(model(x)) for x, _ in data])


def checkpoints(work: Work, every: int) -> None:
    """Follow its guide: ``save_state``, ``load_state``, ``skip_first_batches``."""
    seedable = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator, model, optimizer, data = set_up(work, dataloader_config=seedable)
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    path = work.folder / "last"
    if path.exists():
        accelerator.load_state(str(path))
    model.train()
    first, done = divmod(counter.step, len(data))
    for epoch in range(first, work.epochs):
        if hasattr(data, "set_epoch"):
            data.set_epoch(epoch)
        skipped = epoch == first and done
        for x, y in accelerator.skip_first_batches(data, done) if skipped else data:
            optimizer.zero_grad()
            accelerator.backward(work.criterion(model(x), y))
            optimizer.step()
            counter.step += 1
            if counter.step % every == 0:
                accelerator.save_state(str(path))


class Counter:
    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def job(work: Work) -> float:
    accelerator, model, optimizer, data = set_up(work)
    val_data = accelerator.prepare(work.val_data)
    right = MulticlassAccuracy(work.classes, average="micro")
    found = math.nan
    for epoch in range(1, work.epochs + 1):
        model.train()
        for x, y in data:
            optimizer.zero_grad()
            accelerator.backward(work.criterion(model(x), y))
            optimizer.step()
        found = held_out(accelerator, model, val_data, right)
        accelerator.print(f"epoch {epoch}: accuracy {found:.4f}")
    return found


@torch.no_grad()
def held_out(accelerator: Accelerator, model: Any, data: Any, right: MulticlassAccuracy) -> float:
    model.eval()
    right.reset()
    for x, y in data:
        right.update(*accelerator.gather_for_metrics((model(x), y)))
    return float(right.compute())
