"""Small models, data and loops that tests share."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import Engine, Hook, Trainer
from stoker.hooks import POINTS


def samples(count: int = 20, *, classes: int = 3, features: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(count, features, generator=generator)
    return x, (x.sum(1) * 2).long().abs() % classes


def batches(count: int = 20, size: int = 4) -> list[tuple[Tensor, Tensor]]:
    x, y = samples(count)
    return list(zip(x.split(size), y.split(size), strict=True))


def loader(count: int = 20, size: int = 4, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*samples(count)), batch_size=size, **options)


def net(*, dropout: bool = False, norm: bool = False, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Linear(4, 8)]
    if norm:
        layers.append(nn.BatchNorm1d(8))
    layers.append(nn.ReLU())
    if dropout:
        layers.append(nn.Dropout(0.5))
    return nn.Sequential(*layers, nn.Linear(8, 3))


def sgd(model: nn.Module, lr: float = 0.1, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


def engine(model: nn.Module | None = None, **options: Any) -> Engine:
    model = model or net()
    return Engine(model, sgd(model), nn.CrossEntropyLoss(), **options)


def trainer(*hooks: Hook, model: nn.Module | None = None, **options: Any) -> Trainer:
    return Trainer(engine(model), hooks, **options)


def plain_loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Iterable[Any],
    *,
    epochs: int = 1,
    scheduler: Any = None,
    before_update: Callable[[], Any] = lambda: None,
) -> list[float]:
    """The loop a person writes; the losses it saw."""
    criterion = nn.CrossEntropyLoss()
    losses = []
    model.train()
    for _ in range(epochs):
        for x, y in data:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            before_update()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            losses.append(loss.item())
    return losses


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same_bits(first: nn.Module | dict[str, Tensor], second: nn.Module | dict[str, Tensor]) -> bool:
    a = first if isinstance(first, dict) else first.state_dict()
    b = second if isinstance(second, dict) else second.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Recorder(Hook):
    """Writes down every point it is called at."""

    def __init__(self, name: str = "recorder", priority: int = 50) -> None:
        self.name = name
        self.priority = priority
        self.points: list[str] = []
        for point in POINTS:
            setattr(self, point, lambda run, point=point: self.points.append(point))
