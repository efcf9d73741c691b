"""Keras 3 on torch, selected by ``KERAS_BACKEND``."""

from collections.abc import Iterator
from typing import Any

import keras
import torch
from torch import Tensor
from work import Work

ABSENT: dict[str, str] = {}
NO_JOB = dict.fromkeys(("text", "gpt"), "its loss expects the classes last")


def optimizer_of(work: Work) -> Any:
    """Return the Keras optimizer that is closest to torch's."""
    group = work.optimizer.defaults
    if isinstance(work.optimizer, torch.optim.SGD):
        return keras.optimizers.SGD(group["lr"])
    return keras.optimizers.Adam(group["lr"], epsilon=group["eps"])


def model_of(work: Work, metrics: Any = None) -> Any:
    model = keras.Sequential([keras.layers.TorchModuleWrapper(work.model)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer_of(work), loss, metrics=metrics)
    first = work.data[0] if isinstance(work.data, list) else work.dataset[:2]
    model.test_on_batch(*first)  # builds the model, which calls it
    model.reset_metrics()
    work.watch.calls = 0
    return model


def endless(work: Work) -> Iterator[Any]:
    while True:
        yield from work.data


def given(work: Work, steps: str = "steps_per_epoch") -> dict[str, Any]:
    if isinstance(work.data, list):
        return {"x": endless(work), steps: len(work.data)}
    return {"x": work.data}


def train(work: Work, metrics: Any = None, **more: Any) -> Any:
    model = model_of(work, metrics)
    return model.fit(**given(work), **{"epochs": work.epochs, "verbose": 0, **more})


def fit(work: Work) -> None:
    train(work)


def defaults(work: Work) -> None:
    train(work, verbose="auto")


def accuracy(work: Work) -> float:
    return float(train(work, ["accuracy"]).history["accuracy"][-1])


def callbacks(work: Work, count: int) -> None:
    idle = [type(f"Idle{number}", (keras.callbacks.Callback,), {})() for number in range(count)]
    train(work, callbacks=idle)


def logging(work: Work) -> None:
    """Log each step from a callback, because `CSVLogger` writes once per epoch."""
    with open(work.folder / "metrics.csv", "w") as file:
        write = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: file.write(f"{batch},{logs['loss']}\n")
        )
        train(work, callbacks=[write])


def checkpoints(work: Work, every: int) -> None:
    train(work, callbacks=[keras.callbacks.BackupAndRestore(str(work.folder / "b"), every)])


def evaluate(work: Work) -> float:
    return float(model_of(work).evaluate(**given(work, "steps"), verbose=0))


def predict(work: Work) -> Tensor:
    found = model_of(work).predict(**given(work, "steps"), verbose=0)
    return torch.as_tensor(found)


def job(work: Work) -> float:
    more = {"validation_data": work.val_data, "verbose": "auto"}
    return float(train(work, ["accuracy"], **more).history["val_accuracy"][-1])
