"""Creators and callbacks for tests of the Orca dialect; processes import them from here."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker.core import dist
from stoker.core.errors import CheckpointError
from stoker.dialects.orca.learn.metrics import MSE, Accuracy
from stoker.dialects.orca.learn.pytorch import Estimator
from stoker.dialects.orca.learn.pytorch.callbacks import Callback, MainCallback
from stoker.dialects.orca.learn.pytorch.callbacks.model_checkpoint import ModelCheckpoint
from stoker.dialects.orca.learn.pytorch.callbacks.tensorboard import TensorBoardCallback
from stoker.dialects.orca.loaders import Columns, Partitions

X, Y = load_digits(return_X_y=True)
X, Y = (X[:200] / 16).astype(np.float32), Y[:200]


def model(config):
    torch.manual_seed(config.get("seed", 0))
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10))


def optimizer(model, config):
    return torch.optim.SGD(model.parameters(), lr=config.get("lr", 0.1), momentum=0.9)


def scheduler(optimizer, config):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


def data(count, shuffle=False):
    return TensorDataset(torch.from_numpy(X[:count]), torch.from_numpy(Y[:count]))


def train(config, batch_size):
    generator = torch.Generator().manual_seed(3)
    rows = data(config.get("rows", 100))
    return DataLoader(rows, batch_size=batch_size, shuffle=True, generator=generator)


def val(config, batch_size):
    return DataLoader(data(50), batch_size=batch_size)


def estimator(**options):
    given = {
        "model": model,
        "optimizer": optimizer,
        "loss": nn.CrossEntropyLoss(),
        "metrics": [Accuracy()],
        "backend": "local",
        "config": {"lr": 0.1},
    }
    return Estimator.from_torch(**{**given, **options})


NAMES = [
    f"{when}_{what}"
    for what in (
        "run",
        *(f"{s}_{u}" for s in ("train", "val", "pred") for u in ("epoch", "iter")),
    )
    for when in ("before", "after")
]
OWNED = ("on_train_forward", "on_val_forward", "on_pred_forward", "on_iter_backward")


class Recorder(MainCallback):
    """Writes down every point, and does what the default does there."""

    def __init__(self):
        self.points = []


def _recording(name):
    def point(self, runner):
        self.points.append(name)
        return getattr(MainCallback, name)(self, runner)

    return point


for _name in (*NAMES, *OWNED, "on_lr_adjust"):
    setattr(Recorder, _name, _recording(_name))


class OnRankZero(Callback):
    """What a logger does that is there on the first process alone."""

    def after_train_iter(self, runner):
        if runner.rank == 0:
            runner.update("seen", runner.global_step)

    def after_run(self, runner):
        if runner.rank == 0:
            assert runner.get("seen") == runner.global_step


class Stops(Callback):
    def after_train_iter(self, runner):
        if runner.rank == runner.size - 1 and runner.global_step == 2:
            runner.stop = True


def uneven(config, batch_size):
    """More batches on one rank than on another, none of them shared."""
    rows = 30 if dist.rank() == 0 else 14
    return [
        (torch.from_numpy(X[:rows])[i : i + 5], torch.from_numpy(Y[:rows])[i : i + 5])
        for i in range(0, rows, 5)
    ]


class Widths(Callback):
    """Tells what loaders and counters were like, as results of the last epoch."""

    def after_train_epoch(self, runner):
        runner.epoch_stats["size"] = runner.size
        runner.epoch_stats["loader_batch"] = getattr(runner.train_loader, "batch_size", None)


def fitted(options, *args, **fit):
    """In a process of the pool: the stats of a fit, and all processes' weights."""
    found = estimator(**options)
    rows = found.fit(*args, **fit)
    total = sum(float(p.detach().double().sum()) for p in found.get_model().parameters())
    return rows, dist.all_gather_object(total)


def refused(folder):
    """In a process of the pool: how a folder of something else is refused."""
    try:
        estimator().fit(train, callbacks=[ModelCheckpoint(f"{folder}/")])
    except CheckpointError as error:
        return str(error)


def logged(folder):
    """In a process of the pool: loggers on the first process alone."""
    return fitted({}, train, 2, callbacks=[OnRankZero(), TensorBoardCallback(folder)])


def stopped():
    """In a process of the pool: a stop that the last process alone asks for."""
    return fitted({}, train, 5, batch_size=20, callbacks=[Stops()])


class ByHand(MainCallback):
    """A backward pass as people write it."""

    def on_iter_backward(self, runner):
        runner.optimizer.zero_grad()
        runner.loss.backward()
        runner.optimizer.step()


def trained_by_hand(hand):
    """In a process of the pool: the same training, by an owner's own backward pass or not."""
    owner = ByHand() if hand else MainCallback()
    return fitted({"model": seeded}, train, 2, batch_size=30, callbacks=[owner])


def seeded(config):
    torch.manual_seed(0)
    return nn.Linear(64, 10)


def one_weight(config):
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    return model


def of_two_partitions(synced, rate, rows=(4, 4)):
    """In a process of the pool: train on zeros in one partition and on ones in the other."""
    parts = [Columns(torch.full((n, 1), float(i)), torch.zeros(n, 1)) for i, n in enumerate(rows)]
    data = Partitions(parts, [[n] for n in rows])
    found = estimator(
        model=one_weight,
        optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=config["lr"]),
        loss=nn.MSELoss(),
        metrics=[MSE()],
        config={"lr": rate, "shuffle": False},
        sync_stats=synced,
    )
    epochs = found.fit(data, 2, batch_size=8, validation_data=data, reduce_results=False)
    judged = found.evaluate(data, batch_size=8, reduce_results=False)
    outputs = found.predict(data, batch_size=3)
    return epochs, judged, outputs, found.get_model().weight.item()
