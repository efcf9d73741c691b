"""MMEngine's Runner."""

import logging as log
import uuid
from collections.abc import Iterator
from typing import Any

from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from torch import Tensor
from work import Work

ABSENT = {"predict": "it has no loop that returns outputs"}


class Model(BaseModel):
    """Return losses in one mode and scores in the other, as the Runner expects."""

    def __init__(self, work: Work, accurate: bool = False) -> None:
        super().__init__()
        self.net, self.criterion, self.accurate = work.model, work.criterion, accurate

    def forward(self, x: Tensor, y: Tensor, mode: str) -> Any:
        scores = self.net(x)
        if mode != "loss":
            return [{"scores": scores, "y": y}]
        found = {"loss": self.criterion(scores, y)}
        if self.accurate:
            found["acc"] = (scores.argmax(1) == y).float().mean()
        return found


class Ready:
    """Prepared batches, instead of a DataLoader."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches
        self.dataset = range(len(batches))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class Means(BaseMetric):
    """Compute the mean loss and accuracy over samples."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    def process(self, data_batch: Any, data_samples: Any) -> None:
        scores, y = data_samples[0]["scores"], data_samples[0]["y"]
        right = (scores.argmax(1) == y).sum()
        loss = self.work.criterion(scores, y)
        self.results.append((loss * len(y), right, len(y), y.numel()))

    def compute_metrics(self, results: Any) -> dict[str, float]:
        losses, right, samples, targets = (sum(column) for column in zip(*results, strict=True))
        return {"loss": float(losses) / samples, "accuracy": float(right) / targets}


KINDS = ("runtime_info", "timer", "sampler_seed", "logger", "param_scheduler", "checkpoint")


def runner(work: Work, hooks: dict[str, Any] | None = None, **more: Any) -> Runner:
    """Create a Runner without hooks unless some are given; ``{}`` means its defaults."""
    given = Ready(work.data) if isinstance(work.data, list) else work.data
    training = {"by_epoch": True, "max_epochs": work.epochs}
    settings = {"train_dataloader": given, "train_cfg": training} | more
    if "train_dataloader" in settings and settings["train_dataloader"] is not None:
        settings["optim_wrapper"] = OptimWrapper(work.optimizer)
    return Runner(
        **{"model": Model(work), **settings},
        work_dir=str(work.folder / "out"),
        default_hooks=dict.fromkeys(KINDS) if hooks is None else hooks,
        randomness={"seed": 0},
        experiment_name=uuid.uuid4().hex,
        log_level=log.INFO if hooks == {} else log.ERROR,
    )


def fit(work: Work) -> None:
    runner(work).train()


def defaults(work: Work) -> None:
    runner(work, {}).train()


def accuracy(work: Work) -> float:
    hooks = {kind: None for kind in KINDS if kind != "runtime_info"}
    made = runner(work, hooks, model=Model(work, accurate=True))
    made.train()
    return float(made.message_hub.get_scalar("train/acc").mean())


def callbacks(work: Work, count: int) -> None:
    runner(work, custom_hooks=[Hook() for _ in range(count)]).train()


def logging(work: Work) -> None:
    hooks = {"logger": {"type": "LoggerHook", "interval": 1}, "checkpoint": None}
    runner(work, hooks).train()


def checkpoints(work: Work, every: int) -> None:
    """Use its loop by iterations, which skips seen batches."""
    saving = {"type": "CheckpointHook", "interval": every, "by_epoch": False, "max_keep_ckpts": 1}
    hooks = {"checkpoint": saving, "logger": None}
    loop = {"by_epoch": False, "max_iters": work.epochs * len(work.data)}
    runner(work, hooks, train_cfg=loop, resume=(work.folder / "out").exists()).train()


def evaluate(work: Work) -> float:
    nothing = {"train_dataloader": None, "train_cfg": None}
    validation = {"val_cfg": {}, "val_evaluator": Evaluator(Means(work))}
    made = runner(work, val_dataloader=Ready(work.data), **nothing, **validation)
    return float(made.val()["loss"])


def job(work: Work) -> float:
    found: list[float] = []

    class Keep(Hook):
        def after_val_epoch(self, runner: Any, metrics: Any = None) -> None:
            found.append(metrics["accuracy"])

    validation = {
        "val_dataloader": work.val_data,
        "val_cfg": {},
        "val_evaluator": Evaluator(Means(work)),
    }
    runner(work, {}, custom_hooks=[Keep()], **validation).train()
    return found[-1]
