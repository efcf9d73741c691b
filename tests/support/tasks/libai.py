"""A small LiBai project on real data, and what ranks do with it."""

import contextlib
import io
import json
import os
import signal
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker.dialects.libai.config import LazyCall, default_argument_parser, get_config
from stoker.dialects.libai.config.lazy import as_config
from stoker.dialects.libai.engine import (
    DefaultTrainer,
    EagerTrainer,
    HookBase,
    default_setup,
    hooks,
)
from stoker.dialects.libai.utils import distributed
from stoker.dialects.libai.utils.events import get_event_storage


class Digits(Dataset):
    """Handwritten digits as the keyword arguments of a model."""

    def __init__(self, first: int, last: int) -> None:
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images[first:last] / 16, dtype=torch.float32)
        self.labels = torch.tensor(labels[first:last])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int):
        return {"images": self.images[index], "labels": self.labels[index]}


class Net(nn.Module):
    """Losses while it trains, scores when it is evaluated."""

    def __init__(self, hidden: int = 16, dropout: float = 0.1) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 10)
        )

    def forward(self, images, labels=None):
        scores = self.layers(images)
        if not self.training:
            return {"prediction_scores": scores}
        hits = (scores.argmax(1) == labels).float().mean()
        get_event_storage().put_scalar("some_accuracy", hits)
        return {"cls_loss": nn.functional.cross_entropy(scores, labels)}


def config(folder, **train):
    """A config as a file would give it."""
    usual = {
        "output_dir": str(folder),
        "train_micro_batch_size": 16,
        "train_iter": 12,
        "log_period": 4,
        "checkpointer": {"period": 4, "max_to_keep": 2},
        "evaluation": {"eval_period": 5},
        "input_placement_device": "cpu",
    }
    optim = get_config("common/optim.py").optim
    optim.lr = 0.01
    test = [LazyCall(DataLoader)(dataset=LazyCall(Digits)(first=1500, last=1700))]
    return as_config(
        {
            "model": LazyCall(Net)(hidden=16),
            "graph": {"enabled": False},
            "train": {**usual, **train},
            "optim": optim,
            "dataloader": {
                "train": LazyCall(DataLoader)(
                    dataset=LazyCall(Digits)(first=0, last=100), shuffle=True
                ),
                "test": test,
            },
        }
    )


def flags(*words: str):
    return default_argument_parser().parse_args(list(words))


def rows(folder):
    return [json.loads(line) for line in (Path(folder) / "metrics.json").read_text().splitlines()]


class Losses(HookBase):
    """The loss of every iteration, and what was seen in it."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []

    def after_step(self):
        value, at = self.trainer.storage.latest()["total_loss"]
        self.seen.append((at, value))


class Stop(HookBase):
    """Fails at an iteration."""

    def __init__(self, at: int) -> None:
        self.at = at

    def before_step(self):
        if self.trainer.iter == self.at:
            raise KeyboardInterrupt("killed")


def trained(cfg, *hooks):
    """A run after `default_setup`; seeds as a script has them."""
    torch.set_num_threads(1)
    default_setup(cfg, flags())
    trainer = DefaultTrainer(cfg)
    trainer.register_hooks(hooks)
    trainer.train()
    return trainer


class Killed(HookBase):
    """Ends the process at an iteration, without a word."""

    def __init__(self, at: int) -> None:
        self.at = at

    def after_step(self):
        if self.trainer.iter == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def killed_at(folder, at, last):
    trained(config(folder, train_iter=last), Killed(at))


class Seeds(HookBase):
    def __init__(self) -> None:
        self.seeds: set[int] = set()

    def before_step(self):
        self.seeds.add(torch.initial_seed())


class Ids(HookBase):
    """The samples of every iteration in this process."""

    def __init__(self) -> None:
        self.ids: list[float] = []

    def after_step(self):
        for batch in self.trainer.run.batches:
            self.ids += (batch["images"].double() @ torch.arange(64.0).double() ** 1.5).tolist()


def two_ranks(folder, stop_at=None, sharded=False, saved_every=4):
    seeds, ids, losses = Seeds(), Ids(), Losses()
    zero = {"enabled": sharded, "stage": 3}
    kept = {"period": saved_every, "max_to_keep": 2}
    cfg = config(folder, train_micro_batch_size=8, zero_optimization=zero, checkpointer=kept)
    stop = [Stop(stop_at)] if stop_at is not None else []
    try:
        trainer = trained(cfg, seeds, ids, losses, *stop)
    except KeyboardInterrupt:
        return None
    states = trainer.model.state_dict()
    weights = {n: getattr(w, "full_tensor", w.clone)() for n, w in states.items()}
    return sorted(seeds.seeds), ids.ids, losses.seen, weights, trainer.cfg.train.global_batch_size


class InfoHook(HookBase):
    def __init__(self):
        self.lines = []

    def before_train(self):
        self.lines.append(f"start training at {self.trainer.iter}")

    def after_train(self):
        self.lines.append(f"end training at {self.trainer.iter}")

    def after_step(self):
        if self.trainer.iter % 4 == 0:
            self.lines.append(f"iteration {self.trainer.iter}!")


class MyEagerTrainer(EagerTrainer):
    """The step as LiBai's own trainer has it written out, with the output kept."""

    def __init__(self, model, data_loader, optimizer, grad_acc_steps=1):
        super().__init__(model, data_loader, optimizer, grad_acc_steps)
        self.previous_output = None

    def run_step(self, get_batch, input_placement_device="cuda"):
        data = next(self._data_loader_iter)
        data = get_batch(
            data, input_placement_device, getattr(self.data_loader, "mixup_func", None)
        )
        loss_dict = self.model(**data)
        self.previous_output = loss_dict
        losses = sum(v for k, v in loss_dict.items() if "loss" in k) / self.grad_acc_steps
        losses.backward()
        self.write_metrics(loss_dict, 0.0)
        if (self.iter + 1) % self.grad_acc_steps == 0:
            self.optimizer.clip_grad()
            self.optimizer.step()
            self.optimizer.zero_grad()


class MyTrainer(DefaultTrainer):
    def __init__(self, cfg):
        super().__init__(cfg)
        count = cfg.train.num_accumulation_steps
        self._trainer = MyEagerTrainer(self.model, self.train_loader, self.optimizer, count)

    def build_hooks(self):
        self.info = InfoHook()
        ret = [
            hooks.IterationTimer(),
            hooks.LRScheduler(),
            hooks.PeriodicCheckpointer(self.checkpointer, self.cfg.train.checkpointer.period),
        ]
        ret.append(self.info)
        if distributed.is_main_process():
            ret.append(hooks.PeriodicWriter(self.build_writers(), self.cfg.train.log_period))
        return ret


def my_trainer_in_ranks(folder):
    cfg = config(folder, train_micro_batch_size=8, evaluation={"enabled": False})
    default_setup(cfg, flags())
    trainer = MyTrainer(cfg)
    trainer.train()
    return {name: one.clone() for name, one in trainer.model.state_dict().items()}


def printed_in_ranks(folder):
    """What a rank prints while it trains, and its seed."""
    text, seeds = io.StringIO(), Seeds()
    with contextlib.redirect_stdout(text):
        trained(config(folder, train_micro_batch_size=8, train_iter=8), seeds)
    return text.getvalue(), *seeds.seeds
