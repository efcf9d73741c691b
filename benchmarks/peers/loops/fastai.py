"""fastai."""

from functools import partial
from typing import IO, Any

import torch
from fastai.callback.core import Callback, TrainEvalCallback
from fastai.data.core import DataLoaders
from fastai.learner import Learner, Recorder
from fastai.metrics import accuracy as share_right
from fastai.optimizer import OptimWrapper
from torch import Tensor
from work import Work

ABSENT = {"resume": "it saves only after epochs"}


def learner(work: Work, callbacks: Any = (), **more: Any) -> Learner:
    """Create a learner with these callbacks and the one that sets training mode."""
    settings = {"default_cbs": False, "cbs": [TrainEvalCallback(), *callbacks]}
    return Learner(
        DataLoaders(work.data, work.val_data or []),
        work.model,
        loss_func=work.criterion,
        opt_func=lambda parameters, **_: OptimWrapper(opt=work.optimizer),
        lr=work.optimizer.defaults["lr"],
        path=work.folder,
        **{**settings, **more},
    )


def fit(work: Work) -> None:
    learner(work).fit(1)


def defaults(work: Work) -> None:
    learner(work, default_cbs=True, cbs=None).fit(1)


def accuracy(work: Work) -> float:
    learn = learner(work, [Recorder(train_metrics=True)], metrics=[share_right])
    with learn.no_logging():
        learn.fit(1)
    return float(learn.recorder.values[-1][1])


def callbacks(work: Work, count: int) -> None:
    learner(work, [type(f"Idle{n}", (Callback,), {})() for n in range(count)]).fit(1)


class Lines(Callback):
    """Log each step from a callback, because `CSVLogger` writes once per epoch."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def after_batch(self) -> None:
        self.file.write(f"{self.learn.loss.item()}\n")


def logging(work: Work) -> None:
    with open(work.folder / "losses.txt", "w") as file:
        learn = learner(work, [Recorder(), Lines(file)])
        with learn.no_logging():
            learn.fit(1)


class Saving(Callback):
    def __init__(self, every: int) -> None:
        self.every = every

    def after_batch(self) -> None:
        if self.training and (self.iter + 1) % self.every == 0:
            self.learn.save("last")


def checkpoints(work: Work, every: int) -> None:
    learner(work, [Saving(every)]).fit(work.epochs)


def evaluate(work: Work) -> float:
    learn = learner(work, [Recorder()])
    with learn.no_logging():
        return float(learn.validate(dl=work.data)[0])


def predict(work: Work) -> Tensor:
    learn = learner(work)
    return learn.get_preds(dl=work.data, act=torch.nn.Identity())[0]  # type: ignore[no-any-return]


def job(work: Work) -> float:
    right = partial(share_right, axis=1)
    right.__name__ = "accuracy"  # type: ignore[attr-defined]
    learn = learner(work, default_cbs=True, cbs=None, metrics=[right])
    learn.fit(work.epochs)
    return float(learn.recorder.values[-1][-1])
