"""Trainings with logical ranks whose complete results are compared between numbers of processes."""

import hashlib
import random
from collections.abc import Iterator
from multiprocessing import current_process
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

import stoker.data
from stoker import Engine, Hook, Layout, Output, Trainer, hooks, metrics
from stoker.core.tree import is_sharded
from stoker.metrics import Accuracy
from stoker.nn import lr
from stoker.run import Run

IGNORED = -100


class Noisy(Dataset[Any]):
    """Samples with noise from all three global generators."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __getitem__(self, index: int) -> Any:
        noise = random.random() + np.random.rand() + torch.rand(())
        return self.x[index] + noise * 0.01, self.y[index]

    def __len__(self) -> int:
        return len(self.x)


def mixed_up(samples: list[Any]) -> Any:
    x, y = default_collate(samples)
    return x + torch.rand(()) * 0.01, y


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.unused = nn.Linear(2, 2)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(tokens))).transpose(1, 2)


class Losses(Hook):
    """Keeps the loss of every step, and breaks the run off after one of them."""

    observes = True  # so that a run that breaks off elsewhere is the same run

    def __init__(self, break_after: int | None) -> None:
        self.break_after = break_after
        self.losses: list[str] = []

    def before_step(self, run: Run) -> None:
        if run.step == self.break_after:
            raise KeyboardInterrupt

    def after_step(self, run: Run) -> None:
        loss, norm = run.loss, run.engine.grad_norm
        values = (run.step, run.samples, float(loss), None if norm is None else float(norm))
        self.losses.append(repr(values))


def mlp() -> Any:
    """Dropout, a weighted sampler, two workers and augmentation in them.

    The validations within the training have no workers: starting them is what costs most.
    """
    x, y = torch.randn(53, 4), torch.randint(3, (53,))
    sampler = WeightedRandomSampler(torch.rand(53).tolist(), 47)
    data = DataLoader(Noisy(x, y), batch_size=2, sampler=sampler, num_workers=2)
    validation = DataLoader(Noisy(x, y), batch_size=2, sampler=sampler)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return model, optimizer, nn.CrossEntropyLoss(), {}, (data, validation), [], {}


def convnet() -> Any:
    """BatchNorm, shuffled data that does not divide, metrics of training, mix-up in collate."""
    x, y = torch.randn(59, 1, 6, 6), torch.randint(3, (59,))
    data = DataLoader(Noisy(x, y), batch_size=3, shuffle=True, collate_fn=mixed_up)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    own = [hooks.Metrics(top=Accuracy(), mae=mean_error, on="both")]
    return model, optimizer, nn.CrossEntropyLoss(), {}, (data, data), own, {}


def mean_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.softmax(1).max(1).values - targets).abs().mean()


def transformer() -> Any:
    """Clipping, accumulation, warm-up, EMA, ignored targets with class weights, unused weights."""
    tokens = torch.randint(11, (61, 5))
    targets = torch.where(torch.rand(61, 5) < 0.3, IGNORED, tokens)
    data = DataLoader(TensorDataset(tokens, targets), batch_size=2, shuffle=True)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    criterion = nn.CrossEntropyLoss(weight=torch.rand(11) + 0.1)
    options = {
        "clip_norm": 0.5,
        "lr_scheduler": lr.cosine(optimizer, 20, warmup_steps=3),
    }
    return model, optimizer, criterion, options, (data, data), [hooks.EMA(0.9)], {"accumulate": 2}


class Stream(IterableDataset[Any]):
    """Samples that draw, without a length."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.samples = Noisy(x, y)

    def __iter__(self) -> Iterator[Any]:
        return (self.samples[index] for index in torch.randperm(len(self.samples)).tolist())


def stream() -> Any:
    """A stream without a length, a list of batches, weights that the step knows, torchmetrics."""
    x, y = torch.randn(31, 4), torch.randint(3, (31,))
    data = DataLoader(Stream(x, y), batch_size=2)
    batches = list(zip(x.split(3), y.split(3), strict=True))
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    own = [hooks.Metrics(f1=metrics.get("MulticlassF1Score", num_classes=3), on="both")]
    return model, optimizer, None, {}, (data, batches), own, {"step": weighted}


def records() -> Any:
    """A shuffled stream of records that are filtered, with noise, and batches from it."""
    rows = datasets.Dataset.from_dict(
        {"x": torch.randn(67, 4).tolist(), "y": torch.randint(3, (67,)).tolist()}
    )
    data = stoker.data.stream(rows, shuffle=8, seed=2).filter(has_class).map(noisy).batch(2)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return model, optimizer, nn.CrossEntropyLoss(), {}, (data, data), [], {}


def has_class(record: Any) -> bool:
    return record["y"] != 1 or record["x"][0] > 0


def noisy(record: Any) -> Any:
    return torch.tensor(record["x"]) + torch.rand(()) * 0.01, record["y"]


def weighted(engine: Engine, batch: Any) -> Output:
    x, y = batch
    outputs = engine(x)
    loss = nn.functional.cross_entropy(outputs, y)
    return Output(loss, outputs, y, weight=float(y.sum()), scalars={"largest": outputs.max()})


KINDS = {
    "mlp": mlp,
    "convnet": convnet,
    "transformer": transformer,
    "stream": stream,
    "records": records,
}


def train(
    kind: str,
    ranks: int,
    folder: Path | None = None,
    break_after: int | None = None,
    over: str = "replicate",
) -> dict[str, str]:
    """Train and return digests of everything that came out, the losses as text.

    A run that is broken off returns nothing; with the same folder the next one continues.
    """
    current_process()._config["daemon"] = False  # so that a process of the pool may have workers
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    model, optimizer, criterion, options, loaders, own, settings = KINDS[kind]()
    layout = Layout(**{over: -1}, logical_ranks=ranks)
    engine = Engine(model, optimizer, criterion, device="cpu", layout=layout, **options)
    losses = Losses(break_after)
    saving = [hooks.Checkpoint(every="1st")] if folder is not None else []
    observers = [hooks.Loss(), hooks.GradNorm(), *own]
    trainer = Trainer(
        engine,
        [*observers, losses, *saving],
        run_dir=folder,
        seed=5,
        **settings,
    )
    try:
        history = trainer.fit(*loaders, epochs=2, validate_every="2st")
    except KeyboardInterrupt:
        return {}
    evaluated = trainer.evaluate(loaders[0] if kind == "mlp" else loaders[1])
    dataset = getattr(loaders[0], "dataset", None) if kind != "mlp" else None
    predicted = 0 if dataset is None else trainer.predict(DataLoader(dataset, batch_size=2))
    state = engine.state_dict()
    for one in state["optimizers"].values():
        for group in one["param_groups"]:
            group.pop("foreach")  # which implementation, of the same bits
    return {
        "weights": digest(state["model"]),
        "optimizer": digest(state["optimizers"]),
        "hooks": digest([hook.state_dict() for hook in observers]),
        "history": repr([dict(row) for row in history]),
        "evaluated": repr(evaluated),
        "predicted": digest(predicted),
        "random": repr((torch.rand(()), random.random(), np.random.rand())),
        "losses": "\n".join(losses.losses),
    }


def train_fused() -> str:
    """Return why shards reject a fused optimizer."""
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    try:
        Engine(model, optimizer, device="cpu", layout=Layout(shard=-1, logical_ranks=2))
    except ValueError as error:
        return str(error)
    return ""


def digest(tree: Any) -> str:
    found = hashlib.blake2b(digest_size=8)

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key, one in value.items():
                found.update(repr(key).encode())
                add(one)
        elif isinstance(value, list | tuple):
            found.update(str(len(value)).encode())
            for one in value:
                add(one)
        elif isinstance(value, Tensor):
            complete = value.full_tensor() if is_sharded(value) else value
            found.update(complete.detach().contiguous().numpy().tobytes())
        else:
            found.update(repr(value).encode())

    add(tree)
    return found.hexdigest()
