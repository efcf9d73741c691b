"""MosaicML's Composer.

It imports torchvision, which does not load with this torch: the missing operators are declared here
and never called.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from work import Work

library = torch.library.Library("torchvision", "DEF")
for missing in ("nms", "qnms"):
    library.define(f"{missing}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from composer import Callback, DataSpec, Evaluator, Trainer  # noqa: E402
from composer.loggers import FileLogger  # noqa: E402
from composer.metrics import CrossEntropy  # noqa: E402
from composer.models import ComposerModel  # noqa: E402
from torchmetrics import Metric  # noqa: E402
from torchmetrics.classification import MulticlassAccuracy  # noqa: E402

ABSENT: dict[str, str] = {}


class Model(ComposerModel):
    def __init__(self, work: Work, train: Metric | None = None, val: Metric | None = None) -> None:
        super().__init__()
        self.net, self.criterion = work.model, work.criterion
        self.train_metrics = {"metric": train} if train is not None else {}
        self.val_metrics = {"metric": val} if val is not None else {}

    def forward(self, batch: Any) -> Tensor:
        return self.net(batch[0])  # type: ignore[no-any-return]

    def loss(self, outputs: Any, batch: Any, *_: Any, **__: Any) -> Tensor:
        return self.criterion(outputs, batch[1])  # type: ignore[no-any-return]

    def eval_forward(self, batch: Any, outputs: Any = None) -> Any:
        return outputs if outputs is not None else self.forward(batch)

    def get_metrics(self, is_train: bool) -> dict[str, Metric]:
        return self.train_metrics if is_train else self.val_metrics

    def update_metric(self, batch: Any, outputs: Any, metric: Metric) -> None:
        metric.update(outputs, batch[1])


class Ready:
    """Return prepared batches, with the size that Composer needs."""

    def __init__(self, work: Work) -> None:
        self.batches, self.batch_size = work.data, work.batch_size

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def given(work: Work) -> Any:
    data = Ready(work) if isinstance(work.data, list) else work.data
    return DataSpec(data, get_num_samples_in_batch=lambda batch: len(batch[1]))


def trainer(work: Work, model: Model | None = None, **more: Any) -> Trainer:
    settings = {"train_dataloader": given(work), "optimizers": work.optimizer}
    settings |= {"max_duration": f"{work.epochs}ep", "device": "cpu", "seed": 0}
    return Trainer(model=model or Model(work), **(settings | more))


def run(made: Trainer) -> Trainer:
    made.fit()
    made.close()
    return made


def fit(work: Work) -> None:
    run(trainer(work, progress_bar=False))


def defaults(work: Work) -> None:
    run(trainer(work))


def accuracy(work: Work) -> None:
    """It resets a training metric with each batch, so there is none over the epoch."""
    model = Model(work, train=MulticlassAccuracy(work.classes, average="micro"))
    run(trainer(work, model, progress_bar=False))


def callbacks(work: Work, count: int) -> None:
    idle = [type(f"Idle{number}", (Callback,), {})() for number in range(count)]
    run(trainer(work, progress_bar=False, callbacks=idle))


def logging(work: Work) -> None:
    lines = FileLogger(str(work.folder / "log.txt"), flush_interval=1)
    run(trainer(work, progress_bar=False, loggers=[lines]))


def checkpoints(work: Work, every: int) -> None:
    saving = {"save_folder": str(work.folder / "saved"), "save_interval": f"{every}ba"}
    saving |= {"save_num_checkpoints_to_keep": 1, "run_name": "run", "autoresume": True}
    run(trainer(work, progress_bar=False, **saving))


def evaluate(work: Work) -> float:
    model = Model(work, val=CrossEntropy())
    made = trainer(work, model, progress_bar=False, train_dataloader=None)
    looked = Evaluator(label="eval", dataloader=given(work), metric_names=["metric"])
    made.eval(looked)
    made.close()
    return float(made.state.eval_metrics["eval"]["metric"].compute())


def predict(work: Work) -> Tensor:
    made = trainer(work, progress_bar=False, train_dataloader=None)
    found: Any = made.predict(given(work))
    made.close()
    return torch.cat(found)


def job(work: Work) -> float:
    model = Model(work, val=MulticlassAccuracy(work.classes, average="micro"))
    looked = Evaluator(label="eval", dataloader=work.val_data, metric_names=["metric"])
    made = run(trainer(work, model, eval_dataloader=looked))
    return float(made.state.eval_metrics["eval"]["metric"].compute())
