"""A training in which memory runs out on purpose."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import Engine, Layout, Trainer, hooks
from stoker.core import dist
from stoker.engine import RetrySchedule

ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    RuntimeError(
        "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"
    ),
    MemoryError(),
]


class FailAt:
    """Fails in one pass through the model, counted over all steps, and never again."""

    def __init__(self, number: int, error: BaseException, where: str) -> None:
        self.number, self.error, self.where = number, error, where

    def install(self, model: nn.Module) -> None:
        seen = iter(range(10**6))

        def forward(module: nn.Module, inputs: Any, output: Any) -> None:
            if next(seen) == self.number and module.training:
                if self.where == "forward":
                    raise self.error
                output.register_hook(self._fail)

        model.register_forward_hook(forward)

    def _fail(self, gradient: torch.Tensor) -> None:
        raise self.error


class TooLarge:
    """Fails for every batch of more samples than fit."""

    def __init__(self, fits: int) -> None:
        self.fits = fits

    def install(self, model: nn.Module) -> None:
        def forward(module: nn.Module, inputs: Any, output: Any) -> None:
            if len(inputs[0]) > self.fits and module.training:
                raise torch.OutOfMemoryError("out of memory")

        model.register_forward_hook(forward)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(2)
    return (
        torch.randn(24, 4, generator=made, dtype=torch.float64),
        torch.randn(24, 3, generator=made, dtype=torch.float64),
    )


def model_of(dropout: float, *, norm: bool) -> nn.Module:
    torch.manual_seed(4)
    layers: list[nn.Module] = [nn.Linear(4, 8), nn.BatchNorm1d(8) if norm else nn.Identity()]
    return nn.Sequential(*layers, nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3)).double()


def trained(
    schedule: Any,
    failure: Any = None,
    *extra: Any,
    dropout: float = 0.3,
    norm: bool = True,
    run_dir: Any = None,
    layout: Layout | None = None,
) -> Any:
    """Return weights and buffers, losses, and the number of samples that were trained on."""
    model = model_of(dropout, norm=norm)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    engine = Engine(model, optimizer, nn.MSELoss(), clip_norm=0.5, layout=layout)
    if failure is not None:
        failure.install(model)
    trainer = Trainer(
        engine, [hooks.Loss(), *extra], schedule=schedule, accumulate=2, run_dir=run_dir, seed=1
    )
    loader = DataLoader(TensorDataset(*data()), batch_size=6, shuffle=True)
    history = trainer.fit(loader, epochs=2)
    weights = {name: one.tolist() for name, one in model.state_dict().items()}
    return weights, [row["train/loss"] for row in history], trainer.run.samples


def trained_with_a_failure(rank: int | None, at: int) -> Any:
    """Return what two processes train to if memory runs out on one of them."""
    fails = FailAt(at, MemoryError(), "backward") if dist.rank() == rank else None
    return trained(RetrySchedule(), fails, layout=Layout(replicate=2))
