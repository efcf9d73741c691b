"""Measure what a save costs the training loop: the stall, and the slowdown while files are written.

The state is that of an Adam run, in 300 tensors. The stall of a save is compared with one copy of
the state into allocated buffers. Steps of a small model on one core during a write are compared
with steps just before and after it. The first save of each variant is not counted, because it
allocates memory. Lightning is measured if it is installed
(pip install lightning --constraint constraints.txt).

    python benchmarks/checkpoint.py [--gb 1.2] [--rounds 5] [--folder DIR]
"""

import argparse
import importlib.util
import logging
import multiprocessing
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

from stoker.checkpoint import Checkpoints
from stoker.storage import LocalStorage

State: TypeAlias = dict[str, dict[str, Tensor]]
Busy: TypeAlias = Callable[[], bool]
Save: TypeAlias = Callable[[State, Path], Busy]
"""Starts a save and returns a function that returns whether it is still running."""


def make_state(gigabytes: float) -> State:
    size = int(gigabytes * 1e9 / 4 / 300)
    parts = ("model", "first", "second")
    return {part: {f"{part}.{i}": torch.randn(size) for i in range(100)} for part in parts}


def flat(state: State) -> list[Tensor]:
    return [tensor for part in state.values() for tensor in part.values()]


class Loop:
    """Trains a small model on one core."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001)
        self.batch = torch.randn(64, 256)

    def step(self) -> None:
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def seconds_per_step(self, busy: Busy, at_least: float = 0.0) -> float:
        started, steps = time.perf_counter(), 0
        while busy() or time.perf_counter() - started < at_least:
            self.step()
            steps += 1
        return (time.perf_counter() - started) / max(steps, 1)


class ByThread:
    """Uses `Checkpoints`, which writes in a thread."""

    def __init__(self) -> None:
        self.checkpoints: Checkpoints | None = None

    def __call__(self, state: State, folder: Path) -> Busy:
        if self.checkpoints is None:
            self.checkpoints, self.step = Checkpoints(folder / "thread", keep=1), 0
        self.step += 1
        self.checkpoints.save(self.step, state)
        return lambda: self.checkpoints.background.busy


class ByProcess:
    """Copies, hashes, writes and reads in the same way, in a forked process instead of a thread."""

    def __init__(self, state: State) -> None:
        size = sum(tensor.nbytes for tensor in flat(state))
        self.buffer = torch.empty(size, dtype=torch.uint8).share_memory_()
        self.pipe, theirs = multiprocessing.Pipe()
        fork = multiprocessing.get_context("fork")
        self.worker = fork.Process(target=self._work, args=(theirs,), daemon=True)
        self.worker.start()

    def __call__(self, state: State, folder: Path) -> Busy:
        start = 0
        for tensor in flat(state):
            view = self.buffer[start : start + tensor.nbytes].view(tensor.dtype)
            view.copy_(tensor)
            start += tensor.nbytes
        self.pipe.send(folder / "process")
        return lambda: not self.pipe.poll()

    def finish(self) -> None:
        self.pipe.recv()

    def _work(self, pipe: Connection) -> None:
        while True:
            path = pipe.recv()
            path.unlink(missing_ok=True)
            storage = LocalStorage(path.parent)
            storage.write(path.name, [self.buffer.numpy().data])
            storage.checksum(path.name)
            pipe.send("done")


class ByDcp:
    """Uses torch's asynchronous save, with the stager that keeps its buffers."""

    def __init__(self) -> None:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        self.stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=False,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=False,
            )
        )

    def __call__(self, state: State, folder: Path) -> Busy:
        shutil.rmtree(folder / "dcp", ignore_errors=True)
        flat_state = {name: t for part in state.values() for name, t in part.items()}
        future = dcp.async_save(
            flat_state, checkpoint_id=folder / "dcp", async_stager=self.stager, no_dist=True
        )
        done = getattr(future, "upload_completion", future)
        return lambda: not done.done()


class ByLightning:
    """Uses Lightning's Trainer, which saves the weights and optimizer state of a trained module."""

    def __init__(self, state: State) -> None:
        import lightning

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.weights = nn.ParameterList(t.clone() for t in state["model"].values())

            def training_step(self, batch: Tensor) -> Tensor:
                return torch.stack([weight[0] for weight in self.weights]).sum()

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.Adam(self.parameters(), fused=True)

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        self.trainer = lightning.Trainer(
            accelerator="cpu", max_steps=1, enable_checkpointing=False, **quiet
        )
        self.trainer.fit(Module(), torch.utils.data.DataLoader(torch.zeros(1)))

    def __call__(self, state: State, folder: Path) -> Busy:
        self.trainer.save_checkpoint(folder / "lightning.ckpt")
        return lambda: False


def by_torch_save(state: State, folder: Path) -> Busy:
    torch.save(state, folder / "torch.pt")
    return lambda: False


def measure(
    save: Save, state: State, folder: Path, rounds: int, loop: Loop
) -> tuple[float, float, float]:
    """Return medians over the rounds: seconds of stall, seconds until done, slowdown of steps."""
    found = []
    for _ in range(rounds + 1):
        before = loop.seconds_per_step(lambda: False, at_least=1.0)
        started = time.perf_counter()
        busy = save(state, folder)
        stall = time.perf_counter() - started
        during = loop.seconds_per_step(busy)
        done = time.perf_counter() - started
        if isinstance(save, ByProcess):
            save.finish()
        after = loop.seconds_per_step(lambda: False, at_least=1.0)
        found.append((stall, done, during / statistics.mean((before, after))))
    return tuple(statistics.median(column) for column in zip(*found[1:], strict=True))


def copy_time(state: State, rounds: int) -> float:
    tensors = flat(state)
    buffers = [tensor.clone() for tensor in tensors]
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        for buffer, tensor in zip(buffers, tensors, strict=True):
            buffer.copy_(tensor)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=1.2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    state, loop = make_state(options.gb), Loop()
    process, thread = ByProcess(state), ByThread()
    variants = {
        "Checkpoints (thread)": thread,
        "the same by a process": process,
        "dcp.async_save": ByDcp(),
        "torch.save": by_torch_save,
    }
    if importlib.util.find_spec("lightning") is not None:
        variants["Lightning save_checkpoint"] = ByLightning(state)
    else:
        print("Lightning is not installed: skipped")
    try:
        copy = copy_time(state, options.rounds)
        print(f"{options.gb} GB; one copy into allocated buffers: {copy:.3f} s")
        print(f"{'':26}{'stall':>9}{'in copies':>11}{'done after':>12}{'steps slower':>14}")
        for name, save in variants.items():
            stall, done, slower = measure(save, state, folder, options.rounds, loop)
            waits = save is by_torch_save or isinstance(save, ByLightning)
            late = f"{'–':>14}" if waits else f"{slower:12.2f} ×"
            print(f"{name:26}{stall:7.3f} s{stall / copy:9.2f} ×{done:10.2f} s{late}", flush=True)
    finally:
        if thread.checkpoints is not None:
            thread.checkpoints.close()
        process.worker.kill()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
