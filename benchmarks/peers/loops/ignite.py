"""Ignite: an Engine around your own function."""

import json
import math
from typing import Any

import torch
from ignite.engine import (
    DeterministicEngine,
    Engine,
    Events,
    create_supervised_evaluator,
    create_supervised_trainer,
)
from ignite.handlers import Checkpoint, DiskSaver, ProgressBar
from ignite.metrics import Accuracy, Loss
from torch import Tensor
from work import Work

ABSENT = {"defaults": "nothing is enabled unless you attach it"}


def trainer_of(work: Work, **more: Any) -> Engine:
    return create_supervised_trainer(work.model, work.optimizer, work.criterion, **more)


def tensor_loss(x: Tensor, y: Tensor, y_pred: Tensor, loss: Tensor) -> Tensor:
    """Return the loss as a tensor, not read back at every step."""
    return loss.detach()


def fit(work: Work) -> None:
    trainer_of(work, output_transform=tensor_loss).run(work.data, max_epochs=1)


def accuracy(work: Work) -> float:
    trainer = trainer_of(work, output_transform=lambda x, y, y_pred, loss: (y_pred, y))
    Accuracy().attach(trainer, "accuracy")
    return float(trainer.run(work.data, max_epochs=1).metrics["accuracy"])


def callbacks(work: Work, count: int) -> None:
    """Attach handlers to an event that no step fires."""
    trainer = trainer_of(work, output_transform=tensor_loss)
    for _ in range(count):
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: None)
    trainer.run(work.data, max_epochs=1)


def logging(work: Work) -> None:
    trainer = trainer_of(work)
    with open(work.folder / "metrics.jsonl", "w") as file:

        @trainer.on(Events.ITERATION_COMPLETED)
        def write(engine: Engine) -> None:
            state = engine.state
            file.write(json.dumps({"step": state.iteration, "loss": state.output}) + "\n")

        trainer.run(work.data, max_epochs=1)


def evaluate(work: Work) -> float:
    evaluator = create_supervised_evaluator(work.model, {"loss": Loss(work.criterion)})
    return float(evaluator.run(work.data).metrics["loss"])


def predict(work: Work) -> Tensor:
    evaluator = create_supervised_evaluator(work.model)
    found: list[Tensor] = []
    evaluator.add_event_handler(
        Events.ITERATION_COMPLETED, lambda engine: found.append(engine.state.output[0])
    )
    evaluator.run(work.data)
    return torch.cat(found)


def checkpoints(work: Work, every: int) -> None:
    """Use its engine for exact resume, `DeterministicEngine`, and its `Checkpoint`."""
    supervised = trainer_of(work, output_transform=tensor_loss)
    trainer = DeterministicEngine(supervised._process_function)
    objects = {"model": work.model, "optimizer": work.optimizer, "trainer": trainer}
    saver = DiskSaver(str(work.folder / "saved"), create_dir=True, require_empty=False)
    checkpoint = Checkpoint(objects, saver, n_saved=1)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=every), checkpoint)
    saved = sorted((work.folder / "saved").glob("*.pt"))
    if saved:
        Checkpoint.load_objects(objects, torch.load(saved[-1], weights_only=False))
    trainer.run(work.data, max_epochs=work.epochs)


def job(work: Work) -> float:
    trainer = trainer_of(work)
    ProgressBar().attach(trainer, output_transform=lambda loss: {"loss": loss})
    evaluator = create_supervised_evaluator(work.model, {"accuracy": Accuracy()})
    found = [math.nan]

    @trainer.on(Events.EPOCH_COMPLETED)
    def validate(engine: Engine) -> None:
        found.append(evaluator.run(work.val_data).metrics["accuracy"])
        print(f"epoch {engine.state.epoch}: accuracy {found[-1]:.4f}")

    trainer.run(work.data, max_epochs=work.epochs)
    return float(found[-1])
