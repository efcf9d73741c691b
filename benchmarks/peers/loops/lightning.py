"""Lightning's Trainer."""

import logging as log
import math
import warnings
from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy
from work import Work

ABSENT: dict[str, str] = {}

warnings.filterwarnings("ignore", module="lightning")
log.getLogger("lightning.pytorch").setLevel(log.ERROR)


class Ready:
    """Prepared batches: Lightning would treat a list as several loaders."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def given(work: Work) -> Any:
    return Ready(work.data) if isinstance(work.data, list) else work.data


class Module(L.LightningModule):
    def __init__(self, work: Work) -> None:
        super().__init__()
        self.net, self.criterion = work.model, work.criterion
        self._optimizer = work.optimizer

    def training_step(self, batch: Any) -> Tensor:
        x, y = batch
        return self.criterion(self.net(x), y)  # type: ignore[no-any-return]

    def predict_step(self, batch: Any) -> Tensor:
        return self.net(batch[0])  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._optimizer


class Evaluating(Module):
    def validation_step(self, batch: Any) -> None:
        x, y = batch
        self.log("val_loss", self.criterion(self.net(x), y), batch_size=len(y))


class Accurate(Module):
    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.accuracy: nn.Module = MulticlassAccuracy(work.classes, average="micro")

    def training_step(self, batch: Any) -> Tensor:
        x, y = batch
        scores = self.net(x)
        self.accuracy(scores, y)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        return self.criterion(scores, y)  # type: ignore[no-any-return]


class Logging(Module):
    def training_step(self, batch: Any) -> Tensor:
        loss = super().training_step(batch)
        self.log("loss", loss)
        return loss


class Job(Module):
    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.accuracy: nn.Module = MulticlassAccuracy(work.classes, average="micro")

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        self.accuracy(self.net(x), y)
        self.log("val_accuracy", self.accuracy, on_epoch=True, prog_bar=True)


OFF: dict[str, Any] = {
    "accelerator": "cpu",
    "max_epochs": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def fit(work: Work) -> None:
    L.Trainer(accelerator="cpu", max_epochs=1, barebones=True).fit(Module(work), given(work))


def defaults(work: Work) -> None:
    L.Trainer(accelerator="cpu", max_epochs=1).fit(Module(work), given(work))


def accuracy(work: Work) -> float:
    trainer = L.Trainer(**OFF)
    trainer.fit(Accurate(work), given(work))
    return float(trainer.callback_metrics["accuracy"])


def callbacks(work: Work, count: int) -> None:
    idle = [type(f"Idle{number}", (L.Callback,), {})() for number in range(count)]
    L.Trainer(**OFF, callbacks=idle).fit(Module(work), given(work))


def logging(work: Work) -> None:
    settings = OFF | {"logger": CSVLogger(work.folder), "log_every_n_steps": 1}
    L.Trainer(**settings).fit(Logging(work), given(work))


def checkpoints(work: Work, every: int) -> None:
    saving = ModelCheckpoint(work.folder, every_n_train_steps=every, save_last=True)
    settings = OFF | {"enable_checkpointing": True, "max_epochs": work.epochs}
    trainer = L.Trainer(**settings, callbacks=[saving])
    last = work.folder / "last.ckpt"
    trainer.fit(Module(work), given(work), ckpt_path=last if last.exists() else None)


def evaluate(work: Work) -> float:
    return float(
        L.Trainer(**OFF).validate(Evaluating(work), given(work), verbose=False)[0]["val_loss"]
    )


def predict(work: Work) -> Tensor:
    found: Any = L.Trainer(**OFF).predict(Module(work), given(work))
    return torch.cat(found)


def job(work: Work) -> float:
    trainer = L.Trainer(accelerator="cpu", max_epochs=work.epochs)
    trainer.fit(Job(work), given(work), work.val_data)
    return float(trainer.callback_metrics.get("val_accuracy", math.nan))
