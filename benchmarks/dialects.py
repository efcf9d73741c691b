"""Measure the microseconds per step that a dialect adds to the native trainer with the same hooks.

The model is empty and computes nothing, so that almost only the loop shows. All variants run in one
process on one core, in interleaved rounds. The benchmark measures CPU time of the thread and
subtracts a short fit from a long one, which excludes the start of a fit. It prints three figures:
the fastest round of a dialect minus that of its native twin, the same for the first quartile, and
the median of the differences per round. The native trainer compared with itself shows the noise.

    python benchmarks/dialects.py [--rounds 10] [--steps 3000]
"""

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any, TypeAlias

import torch
from torch import nn

from stoker import Engine, Trainer, hooks
from stoker.dialects.colossalai.engine import Engine as ColossalEngine
from stoker.dialects.colossalai.trainer import Trainer as ColossalTrainer
from stoker.dialects.colossalai.trainer import hooks as colossal
from stoker.dialects.libai.engine import EagerTrainer
from stoker.dialects.libai.engine import hooks as libai
from stoker.dialects.orca.learn.pytorch import Estimator
from stoker.dialects.orca.learn.pytorch.callbacks import Callback as OrcaCallback
from stoker.dialects.towhee.trainer.callback import Callback as TowheeCallback
from stoker.dialects.towhee.trainer.trainer import Trainer as TowheeTrainer
from stoker.dialects.towhee.trainer.training_config import TrainingConfig
from stoker.hooks import Hook

BATCH = 8
Fit: TypeAlias = Callable[[list[Any]], None]


class Empty(nn.Module):
    """Return one parameter, whatever the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.zeros(()))

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        return self.number


class Named(Empty):
    """Return a dict of losses, as LiBai's models do."""

    def forward(self, **_: Any) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {"loss": self.number}


class Identity(nn.Module):
    """Return the output as the loss."""

    def forward(self, outputs: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return outputs


class NoUpdate(torch.optim.SGD):
    """Change nothing."""

    def step(self) -> None:  # type: ignore[override]
        pass


def parts(kind: type[nn.Module] = Empty) -> tuple[nn.Module, NoUpdate, nn.Module]:
    model = kind()
    return model, NoUpdate(model.parameters(), lr=0.1), Identity()


class UserHook(Hook):
    """A user's hook that acts after every step."""

    def after_step(self, run: Any) -> None:
        pass


def native(*more: Hook, rate: bool = False) -> Fit:
    def fit(batches: list[Any]) -> None:
        model, optimizer, criterion = parts()
        steady = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0) if rate else None
        engine = Engine(model, optimizer, criterion, lr_scheduler=steady)
        Trainer(engine, [hooks.Loss(), UserHook(), *more]).fit(batches, epochs=1)

    return fit


def colossalai(batches: list[Any]) -> None:
    model, optimizer, criterion = parts()
    steady = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)

    class UserHook(colossal.BaseHook):
        def after_train_iter(self, trainer: Any, output: Any, label: Any, loss: Any) -> None:
            pass

    trainer = ColossalTrainer(ColossalEngine(model, optimizer, criterion))
    own = [colossal.LossHook(), colossal.LRSchedulerHook(steady, by_epoch=False), UserHook()]
    trainer.fit(batches, epochs=1, hooks=own)


def native_of_names(batches: list[Any]) -> None:
    model, optimizer, _ = parts(Named)
    steady = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    engine = Engine(model, optimizer, lr_scheduler=steady)
    Trainer(engine, [hooks.Loss(), hooks.LR(), hooks.Timing(), UserHook()]).fit(batches, epochs=1)


def in_libai(batches: list[Any]) -> None:
    model, optimizer, _ = parts(Named)
    steady = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)

    class UserHook(libai.HookBase):
        def after_step(self) -> None:
            pass

    trainer = EagerTrainer(model, batches, optimizer)
    trainer.register_hooks(
        [libai.IterationTimer(), libai.LRScheduler(optimizer, steady), UserHook()]
    )
    trainer.train(0, len(batches))


def in_orca(batches: list[Any]) -> None:
    class UserHook(OrcaCallback):
        def after_train_iter(self, runner: Any) -> None:
            pass

    model, optimizer, criterion = parts()
    estimator = Estimator.from_torch(
        model=model, optimizer=optimizer, loss=criterion, backend="local", log_level=logging.ERROR
    )
    estimator.fit(Ready(batches), epochs=1, callbacks=[UserHook()])
    estimator.shutdown()


class Ready:
    """A loader of prepared batches."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Any:
        return iter(self._batches)


def native_saving(batches: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        native(hooks.Checkpoint(None, folder=folder))(batches)


def towhee(batches: list[Any]) -> None:
    class UserHook(TowheeCallback):
        reads_every = 0

        def on_train_batch_end(self, batch: Any, logs: Any) -> None:
            pass

    with tempfile.TemporaryDirectory() as folder:
        config = TrainingConfig(
            output_dir=folder, epoch_num=1, metric=None, tensorboard=None, print_steps=10**9,
            early_stopping=None, model_checkpoint=None, lr_scheduler_type="constant",
        )  # fmt: skip
        model, optimizer, criterion = parts()
        trainer = TowheeTrainer(model, config, train_dataloader=Ready(batches))
        trainer.set_optimizer(optimizer)
        trainer.set_loss(criterion)
        trainer.add_callback(UserHook())
        trainer.train()


PAIRS: dict[str, tuple[Fit, Fit]] = {
    "native again (noise)": (native(), native()),
    "colossalai": (native(hooks.LR(), rate=True), colossalai),
    "libai": (native_of_names, in_libai),
    "orca": (native_saving, in_orca),
    "towhee": (native_saving, towhee),
}


def seconds(fit: Fit, batches: list[Any]) -> float:
    began = time.thread_time()  # CPU time: other work on the machine hardly disturbs it
    fit(batches)
    return time.thread_time() - began


def fast_quarter(values: list[float]) -> float:
    return statistics.quantiles(values, n=4)[0]


def measure(steps: int, rounds: int, only: list[str]) -> None:
    x, y = torch.zeros(steps * BATCH, 1), torch.zeros(steps * BATCH)
    pairs = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    named = [{"x": one, "y": other} for one, other in pairs]
    chosen = {name: PAIRS[name] for name in only or PAIRS}
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in chosen}
    for number in range(rounds + 1):
        for name, both in chosen.items():
            for fit, values in zip(both, times[name], strict=True):
                data = named if name == "libai" else pairs
                long, short = seconds(fit, data), seconds(fit, data[: steps // 10])
                if number:  # the first round is warm-up
                    values.append((long - short) / (steps - steps // 10) * 1e6)
    sys.stdout = sys.__stdout__
    print(f"µs per step added to the native trainer ({rounds} rounds of {steps} steps)")
    print(f"  {'':24}{'native':>10}{'fastest':>10}{'quartile':>10}{'median':>10}")
    for name, (base, values) in times.items():
        fastest = min(values) - min(base)
        quarter = fast_quarter(values) - fast_quarter(base)
        middle = statistics.median(v - b for v, b in zip(values, base, strict=True))
        print(f"  {name:24}{min(base):10.1f}{fastest:+10.1f}{quarter:+10.1f}{middle:+10.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--only", nargs="*", default=[], choices=list(PAIRS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    logging.disable(logging.WARNING)
    with redirect_stderr(StringIO()), redirect_stdout(StringIO()):
        measure(options.steps, options.rounds, options.only)


if __name__ == "__main__":
    main()
