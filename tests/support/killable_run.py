"""A training with everything that can go astray, run in a process that can be killed."""

import json
import multiprocessing
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import Engine, Hook, Trainer, hooks, seed_all
from stoker.data import SeededDataset
from stoker.events import Csv
from stoker.nn import lr
from support.processes import HANG

STEPS = 14  # in two epochs of 21 batches, three to a step

POINTS = ("before_epoch", "before_step", "after_forward", "before_update", "after_step",
          "after_train_epoch", "before_val", "after_val_step", "after_val", "after_epoch",
          "after_train", "after_run")  # fmt: skip


class Noisy(Dataset):
    """Samples that are drawn anew each time they are read."""

    def __init__(self, size: int) -> None:
        self.x = torch.randn(size, 6, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int):
        sys.audit("killable_run.read")  # a listener is no part of the run, as a method would be
        x = self.x[index] + 0.1 * torch.randn(6)
        return x, int(self.x[index].sum() > 0)


class Ids(Hook):
    """What the steps saw, as a result of each step: a sum over the inputs."""

    priority = 5

    def after_step(self, run):
        seen = sum(float(x.double().sum()) for x, _ in run.batches)
        run.events.put_scalar("seen", seen, smoothing_hint=False)


class Halt(Hook):
    """Stands still at a point until a signal comes from outside."""

    priority = 95

    observes = True

    def state_dict(self):
        return {}  # it counts in this attempt only

    def __init__(self, point: str, nth: int, pipe) -> None:
        self.left = nth
        self.pipe = pipe
        if point == "fetch":
            sys.addaudithook(lambda event, _: event == "killable_run.read" and self.count())
        elif point == "backward":
            self.after_forward = lambda run: run.outputs[-1].loss.register_hook(self.count)
        else:
            setattr(self, point, self.count)

    def count(self, *_) -> None:
        self.left -= 1
        if self.left == 0:
            self.pipe.send("here")
            self.pipe.recv()


def trainer(
    folder: Path, *, workers=0, precision="fp32", halt=(), every="2st", overhead=0.01, grace=30.0,
    slow=0.0, size=83,
) -> tuple:  # fmt: skip
    seed_all(7)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.4), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train = SeededDataset(Noisy(size), seed=5) if workers else Noisy(size)
    loader = DataLoader(train, batch_size=4, shuffle=True, num_workers=workers)
    val = DataLoader(Noisy(20), batch_size=8)
    engine = Engine(
        model, optimizer, nn.CrossEntropyLoss(), clip_norm=1.0, precision=precision,
        lr_scheduler=lr.cosine(optimizer, STEPS, warmup_steps=3),
    )  # fmt: skip
    stock = [
        hooks.Loss(window=5), hooks.LR(), hooks.EMA(0.9), hooks.GradNorm(),
        hooks.Metrics("accuracy", on="both"), hooks.EarlyStopping("val/loss", patience=9),
        hooks.KeepBest("val/loss"), hooks.Write(hooks.JsonLines(), Csv(), every=3),
        hooks.Checkpoint(every, keep=2, max_overhead=overhead),
        hooks.SaveWeights(), hooks.LogFile(), Ids(), *halt,
        hooks.Callback(name="slow", after_val_step=lambda run: time.sleep(slow)),
    ]  # fmt: skip
    made = Trainer(engine, stock, accumulate=3, run_dir=folder, grace=grace)
    return made, loader, val


def train(folder: Path, **how) -> Trainer:
    torch.set_num_threads(1)
    made, loader, val = trainer(folder, **how)
    made.fit(loader, val, epochs=2, validate_every="4st")
    return made


def result(folder: Path, made: Trainer) -> dict:
    """Everything two runs must agree in."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row.pop("time")
    states = {hook.name: hook.state_dict() for hook in made.hooks}
    states.pop("Write(JsonLines, Csv)")
    return {
        "engine": made.engine.state_dict(),
        "rows": rows,
        "csv": (folder / "metrics.csv").read_text(),
        "hooks": states,
        "history": list(made.history),
        "counters": (made.run.step, made.run.epoch, made.run.samples),
        "draws": torch.rand(3),
    }


def _child(folder, pipe, where, how):
    try:
        os.environ.pop("STOKER_KILL_AT", None)
        if where is not None and where[0] == "save":
            os.environ["STOKER_KILL_AT"] = where[1]
            where = None
        halt = [Halt(*where, pipe)] if where is not None else []
        made = train(folder, halt=halt, **how)
        torch.save(result(folder, made), folder.with_suffix(".pt"))
        pipe.send(None)
    except BaseException as error:
        pipe.send(error)
        raise
    finally:
        pipe.close()


def attempt(folder: Path, where=None, number=signal.SIGKILL, **how):
    """Run it in a process of its own: its result, or None if it was killed at ``where``."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(folder, theirs, where, how))
    process.start()
    theirs.close()
    if not ours.poll(HANG):
        os.kill(process.pid, signal.SIGABRT)  # it stands still: it shows where, and dies
    try:
        said = ours.recv()
    except EOFError:
        said = None  # killed in a save
    if isinstance(said, str):
        os.kill(process.pid, number)
        with suppress(BrokenPipeError):
            time.sleep(2 if "grace" in how else 0)
            ours.send("go on")  # a signal that is minded has been minded by then
    process.join(HANG)
    if isinstance(said, BaseException):
        raise said
    assert process.exitcode in (0, 143 if number != signal.SIGKILL else -number, -signal.SIGKILL)
    if process.exitcode:
        return None
    return torch.load(folder.with_suffix(".pt"), weights_only=False)


def same(one, other) -> bool:
    """Bit for bit, whatever it is made of."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and one.equal(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or one != one


def differences(one, other, path="") -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [d for k in one for d in differences(one[k], other[k], f"{path}.{k}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [d for i in range(len(one)) for d in differences(one[i], other[i], f"{path}.{i}")]
    return [] if same(one, other) else [f"{path}: {one!r} is not {other!r}"[:300]]
