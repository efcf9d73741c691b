"""Stoker."""

from typing import Any

from torch import Tensor
from work import Work

from stoker import Engine, Hook, Trainer, hooks
from stoker.events import JsonLines

ABSENT: dict[str, str] = {}


def trainer(work: Work, use: list[Hook] | None, run_dir: Any = None) -> Trainer:
    return Trainer(Engine(work.model, work.optimizer, work.criterion), use, run_dir=run_dir)


def fit(work: Work) -> None:
    trainer(work, []).fit(work.data, epochs=1)


def defaults(work: Work) -> None:
    trainer(work, None, work.folder / "run").fit(work.data, epochs=1)


def accuracy(work: Work) -> float:
    history = trainer(work, [hooks.Metrics("accuracy", on="train")]).fit(work.data, epochs=1)
    return history[-1]["train/accuracy"]


class Idle(Hook):
    def __init__(self, number: int) -> None:
        self.name = f"idle{number}"


def callbacks(work: Work, count: int) -> None:
    trainer(work, [Idle(number) for number in range(count)]).fit(work.data, epochs=1)


def logging(work: Work) -> None:
    writing = [hooks.Loss(window=1), hooks.Write(JsonLines(), every=1)]
    trainer(work, writing, work.folder / "run").fit(work.data, epochs=1)


def checkpoints(work: Work, every: int) -> None:
    saving = [hooks.Checkpoint(every, keep=1)]
    trainer(work, saving, work.folder / "run").fit(work.data, epochs=work.epochs)


def evaluate(work: Work) -> float:
    return trainer(work, [hooks.Loss()]).evaluate(work.data)["val/loss"]


def predict(work: Work) -> Tensor:
    return trainer(work, []).predict(work.data)  # type: ignore[no-any-return]


def job(work: Work) -> float:
    use = [*hooks.default(), hooks.Metrics("accuracy")]
    history = trainer(work, use, work.folder / "run").fit(
        work.data, work.val_data, epochs=work.epochs
    )
    return history[-1]["val/accuracy"]
