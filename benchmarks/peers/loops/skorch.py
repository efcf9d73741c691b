"""skorch: nets with the interface of scikit-learn."""

from collections.abc import Iterator
from typing import IO, Any

import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback, EpochScoring
from skorch.helper import predefined_split
from torch import Tensor
from work import Work

ABSENT = {"resume": "it saves only after epochs"}
NO_JOB = dict.fromkeys(
    ("text", "gpt"), "its scores are scikit-learn's, which expect one class per sample"
)


class Ready:
    """An iterator over prepared batches, instead of a DataLoader."""

    def __init__(self, dataset: Any, batches: Any = (), **_: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def net(work: Work, callbacks: Any = "disable", **more: Any) -> NeuralNetClassifier:
    given: dict[str, Any] = {"iterator_train__shuffle": False}
    if isinstance(work.data, list):
        given = {"iterator_train": Ready, "iterator_train__batches": work.data}
        given |= {"iterator_valid": Ready, "iterator_valid__batches": work.data}
    made = NeuralNetClassifier(
        work.model,
        criterion=work.criterion,
        optimizer=lambda parameters, **_: work.optimizer,
        max_epochs=work.epochs,
        batch_size=work.batch_size,
        callbacks=callbacks,
        classes=list(range(work.classes)),
        lr=work.optimizer.defaults["lr"],
        **{"verbose": 0, "train_split": None, **given, **more},
    )
    return made.initialize()


def inputs(work: Work) -> Any:
    """Return the training data; prepared batches come from the iterator instead."""
    return work.data[:1] if isinstance(work.data, list) else work.dataset


def fit(work: Work) -> None:
    net(work).partial_fit(inputs(work), None)


def defaults(work: Work) -> None:
    net(work, None, verbose=1).partial_fit(inputs(work), None)


def accuracy(work: Work) -> float:
    score = EpochScoring("accuracy", name="accuracy", on_train=True, lower_is_better=False)
    made = net(work, [score], callbacks__print_log=None, callbacks__valid_acc=None)
    made.partial_fit(inputs(work), None)
    return float(made.history[-1, "accuracy"])


def callbacks(work: Work, count: int) -> None:
    idle = [(f"idle{number}", Callback()) for number in range(count)]
    net(work, idle, callbacks__print_log=None, callbacks__valid_acc=None).partial_fit(
        inputs(work), None
    )


class Lines(Callback):
    """Write a file by hand, because it keeps losses in its history."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def on_batch_end(self, net: Any, training: bool = True, **_: Any) -> None:
        self.file.write(f"{net.history[-1, 'batches', -1, 'train_loss']}\n")


def logging(work: Work) -> None:
    with open(work.folder / "losses.txt", "w") as file:
        lines = ("lines", Lines(file))
        made = net(work, [lines], callbacks__print_log=None, callbacks__valid_acc=None)
        made.partial_fit(inputs(work), None)


class Saving(Callback):
    def __init__(self, work: Work, every: int) -> None:
        self.work, self.every, self.step = work, every, 0

    def on_batch_end(self, net: Any, training: bool = True, **_: Any) -> None:
        self.step += 1
        if self.step % self.every == 0:
            files = {"f_params": "params.pt", "f_optimizer": "optimizer.pt"}
            net.save_params(**{name: self.work.folder / file for name, file in files.items()})


def checkpoints(work: Work, every: int) -> None:
    saving = ("saving", Saving(work, every))
    made = net(work, [saving], callbacks__print_log=None, callbacks__valid_acc=None)
    made.partial_fit(inputs(work), None)


def evaluate(work: Work) -> float:
    """Validate without training, step by step, because only `fit` validates."""
    made = net(work)
    total, seen = 0.0, 0
    for batch in made.get_iterator(inputs(work), training=False):
        total += made.validation_step(batch)["loss"] * len(batch[1])
        seen += len(batch[1])
    return float(total) / seen


def predict(work: Work) -> Tensor:
    return torch.cat(list(net(work).forward_iter(inputs(work))))


def job(work: Work) -> float:
    made = net(
        work,
        None,
        verbose=1,
        iterator_train__shuffle=True,
        iterator_train__num_workers=work.data.num_workers,
        iterator_train__persistent_workers=work.data.persistent_workers,
        iterator_valid__batch_size=work.val_data.batch_size,
        train_split=predefined_split(work.val_data.dataset),
    )
    made.partial_fit(work.dataset, None)
    return float(made.history[-1, "valid_acc"])
