"""Measurements of a peer, in its own process."""

import gc
import hashlib
import os
import resource
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import work
from work import Watch, Work


class AbsentError(Exception):
    """The peer has no such feature."""


def in_short(error: BaseException) -> str:
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"


def function(peer: Any, name: str) -> Callable[..., Any]:
    if name in peer.ABSENT:
        raise AbsentError(peer.ABSENT[name])
    return getattr(peer, name)  # type: ignore[no-any-return]


def clock(watch: Watch, steps: int) -> dict[str, float]:
    """Record when the model is called after a tenth of the steps, and for the last step."""
    seen: dict[str, float] = {}
    warm = max(1, min(100, steps // 10))
    watch.at[warm] = lambda: seen.update(warm=time.perf_counter())
    watch.at[steps] = lambda: seen.update(last=time.perf_counter())
    seen["between"] = steps - warm
    return seen


def pace(seen: dict[str, float], seconds: float, watch: Watch, steps: int) -> dict[str, Any]:
    """Return microseconds per step, and milliseconds of the call outside its steps."""
    if watch.calls != steps:
        raise RuntimeError(f"the model was called {watch.calls} times in {steps} steps")
    per_step = (seen["last"] - seen["warm"]) / seen["between"]
    return {"us": per_step * 1e6, "beside_ms": (seconds - per_step * steps) * 1e3}


def settle(peer: Any, folder: Path) -> dict[str, Any]:
    """Keep modules out of garbage collection, so that it does not disturb the timing."""
    gc.collect()
    gc.freeze()
    return {}


def steps(
    peer: Any,
    folder: Path,
    run: str,
    steps: int,
    data: str = "batches",
    arguments: tuple[Any, ...] = (),
) -> dict[str, Any]:
    """Run a loop over the data, timed from within."""
    call = function(peer, run)
    watch = Watch()
    task = work.tiny(watch, getattr(work, data)(steps))
    task.folder = folder
    seen = clock(watch, steps)
    began = time.perf_counter()
    result = call(task, *arguments)
    found = pace(seen, time.perf_counter() - began, watch, steps)
    if isinstance(result, torch.Tensor):
        result = result.double().sum().item()
    return {**found, "result": result, "weights": work.weights(task.model)}


def memory(peer: Any, folder: Path, steps: int) -> dict[str, Any]:
    """Return the growth in MB between a tenth of the steps and the last, with the loss logged."""
    call = function(peer, "logging")
    watch = Watch()
    few = work.batches(100)
    task = work.tiny(watch, few * (steps // len(few)))
    task.folder = folder
    sizes: list[float] = []
    for step in (steps // 10, steps):
        watch.at[step] = lambda: sizes.append(work.resident())
    began = time.perf_counter()
    call(task)
    seconds = time.perf_counter() - began
    if len(sizes) != 2:
        raise RuntimeError(f"the model was called {watch.calls} times in {steps} steps")
    return {
        "growth_mb": sizes[1] - sizes[0],
        "over_steps": steps - steps // 10,
        "us": seconds / steps * 1e6,
        "bytes": on_disk(folder),
        "weights": work.weights(task.model),
    }


def on_disk(folder: Path) -> int:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sum(path.stat().st_size for path in files)


# Checkpoints

SAVE_EVERY = 10


def stall(peer: Any, folder: Path, saves: int) -> dict[str, Any]:
    """Return how long a save blocks the loop, and its total cost, in milliseconds."""
    call = function(peer, "checkpoints")
    watch, steps = Watch(), (saves + 1) * SAVE_EVERY
    times: list[float] = []
    watch.at = {n: lambda: times.append(time.perf_counter()) for n in range(1, steps + 1)}
    task = work.wide(watch, work.batches(steps))
    task.folder = folder
    sizes: list[float] = []
    watch.at[steps] = lambda: sizes.append(on_disk(folder))  # some remove it at the end
    call(task, SAVE_EVERY)
    gaps = [after - before for before, after in pairwise(times)]
    usual = statistics.median(gaps)
    by_save = [gaps[n * SAVE_EVERY - 2 : n * SAVE_EVERY + 3] for n in range(1, saves + 1)]
    blocked = [max(near) - usual for near in by_save][1:]  # the first finds cold buffers
    after_first = gaps[2 * SAVE_EVERY - 2 :]
    cost = (sum(after_first) - usual * len(after_first)) / (saves - 1)
    return {
        "blocked_ms": statistics.median(blocked) * 1e3,
        "cost_ms": cost * 1e3,
        "step_ms": usual * 1e3,
        "mb": sizes[0] / 1e6,
        "weights": digest(task),
    }


def resume(peer: Any, folder: Path, kill_at: int, every: int) -> dict[str, Any]:
    """Kill a run in the middle of an epoch, restart it, and compare the final bits."""
    function(peer, "checkpoints")
    if "resume" in peer.ABSENT:
        raise AbsentError(peer.ABSENT["resume"])
    straight, resumed = folder / "straight", folder / "resumed"
    straight.mkdir()
    resumed.mkdir()
    expected = in_child(lambda: train(peer, straight, every), straight)
    killed = in_child(lambda: train(peer, resumed, every, kill_at), resumed)
    if killed:
        raise RuntimeError(killed.get("error", "it finished before it could be killed"))
    found = in_child(lambda: train(peer, resumed, every), resumed)
    for answer, what in ((expected, "train"), (found, "resume after the kill")):
        if "weights" not in answer:
            raise RuntimeError(f"it did not {what}: {answer.get('error')}")
    pairs = zip(found["weights"], expected["weights"], strict=True)
    return {
        "same": found["weights"] == expected["weights"],
        "difference": max(abs(mine - theirs) for mine, theirs in pairs),
        "calls": found["calls"],
        "weights": expected["weights"],
    }


def train(peer: Any, folder: Path, every: int, kill_at: int | None = None) -> dict[str, Any]:
    watch = Watch()
    if kill_at is not None:
        watch.at[kill_at] = lambda: os.kill(os.getpid(), signal.SIGKILL)
    task = work.tiny(watch, work.shuffled(20), dropout=0.2, epochs=3)
    task.folder = folder
    peer.checkpoints(task, every)
    return {"weights": work.weights(task.model), "calls": watch.calls}


def in_child(act: Callable[[], dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Call it in a process that may be killed, and return its result, or nothing if it was."""
    answer = folder.with_suffix(".answer")
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            os.chdir(folder)
            torch.save(act(), answer)
        except BaseException as error:
            traceback.print_exc()
            torch.save({"error": in_short(error)}, answer)
        os._exit(0)
    os.waitpid(child, 0)
    return torch.load(answer) if answer.exists() else {}


# In fresh processes


def recover(
    peer: Any, folder: Path, place: str, every: int, step: int, kill: bool
) -> dict[str, Any]:
    """Train in a folder that stays. Kill the process in a step, or tell when that step is done.

    Times go to a file: a list would be state of the model, which some peers restore.
    """
    function(peer, "checkpoints")
    if "resume" in peer.ABSENT:
        raise AbsentError(peer.ABSENT["resume"])
    os.chdir(place)
    watch, epochs, per_epoch = Watch(), 3, 20
    clock = os.open("times", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def stamp() -> None:
        os.write(clock, f"{time.time()}\n".encode())

    watch.at = dict.fromkeys(range(1, epochs * per_epoch + 1), stamp)
    if kill:
        watch.at[step] = lambda: os.kill(os.getpid(), signal.SIGKILL)
    task = work.tiny(watch, work.shuffled(per_epoch), dropout=0.2, epochs=epochs)
    task.folder = Path(place)
    peer.checkpoints(task, every)
    times = Path(place, "times").read_text().split()
    resumed_at = epochs * per_epoch - len(times)
    return {"done": float(times[step - resumed_at]), "resumed_at": resumed_at}


def first_step(peer: Any, folder: Path) -> dict[str, Any]:
    """Return the time at which the first step is done: the model is called for the second."""
    watch = Watch()
    seen: dict[str, float] = {}
    watch.at[2] = lambda: seen.update(first=time.time())
    task = work.tiny(watch, work.batches(2))
    task.folder = folder
    function(peer, "fit")(task)
    return seen


class LossCurve:
    """Measure the validation loss after each epoch, outside the time of the peer.

    An epoch ends with the first call of the model without gradients.
    """

    def __init__(self, task: Work) -> None:
        self._task, self._batch = task, task.val_data.batch_size
        self._trained = False
        self.began = self.paused = self.paused_cpu = 0.0
        self.points: list[tuple[float, float]] = []

    def __call__(self) -> None:
        if torch.is_grad_enabled():
            self.began = self.began or time.perf_counter()
            self._trained = True
        elif self._trained:
            self._trained = False
            before, cpu = time.perf_counter(), time.process_time()
            self.points.append((before - self.began - self.paused, self._loss()))
            self.paused += time.perf_counter() - before
            self.paused_cpu += time.process_time() - cpu

    def _loss(self) -> float:
        layers: Any = self._task.model.layers
        modes = [(module, module.training) for module in layers.modules()]
        layers.eval()
        total, count = 0.0, 0
        batches = work.held_out(self._task.val_data.dataset, self._batch)
        with torch.no_grad():
            for x, y in batches:
                total += self._task.criterion(layers(x), y).item() * len(y)
                count += len(y)
        for module, mode in modes:
            module.training = mode
        return total / count


def job(peer: Any, folder: Path, name: str) -> dict[str, Any]:
    call = function(peer, "job")
    if name in getattr(peer, "NO_JOB", {}):
        raise AbsentError(peer.NO_JOB[name])
    watch = Watch()
    seen: dict[str, float] = {}
    watch.at[1] = lambda: seen.update(began=time.perf_counter())
    task = import_module(f"{name}_job").task(watch)
    task.folder = folder
    curve = LossCurve(task) if task.losses else None
    if curve is not None:
        sys.model_called = curve  # type: ignore[attr-defined]
    result = call(task)
    trained = time.perf_counter() - seen["began"]
    print(f"held-out accuracy: {result:.1%}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    found = {"result": result, "weights": digest(task), "peak_mb": peak}
    if curve is not None:
        trained -= curve.paused
        found |= {"paused_cpu": curve.paused_cpu, "losses": curve.points}
    return {**found, "epoch_s": trained / task.epochs}


def digest(task: Work) -> str:
    parameters = [p.detach().numpy().tobytes() for p in task.model.parameters()]
    return hashlib.sha256(b"".join(parameters)).hexdigest()


REQUESTS: dict[str, Callable[..., dict[str, Any]]] = {
    "settle": settle,
    "steps": steps,
    "memory": memory,
    "stall": stall,
    "resume": resume,
    "first_step": first_step,
    "recover": recover,
    "job": job,
}
