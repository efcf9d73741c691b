"""Run each of `state_kinds` in processes that are killed, and compare it with a run that is not."""

import json
import logging
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stoker import Engine, Hook, Trainer, hooks, seed_all
from stoker.core.digest import digest
from support.state_kinds import KINDS, Net

EPOCHS = 3
torch.optim.Adam(Net().parameters())  # imports what every process needs, once

KILLS = (5, 8, 15, 20)
"""Within the first epoch, just after its end, just after the second, and close to the end."""

WARNING = ("cannot be saved", "may differ", "does not reach", "could not be restored")


class Trace(Hook):
    """Appends what each step saw to a file, and kills the process after a step."""

    priority = 95
    observes = True

    def __init__(self, path: Path, kill_at: int | None) -> None:
        self.path, self.kill_at = path, kill_at

    def state_dict(self):
        return {}

    def after_step(self, run):
        line = {
            "step": run.step,
            "batch": digest(list(run.batches), exact=True),
            "loss": float(run.loss),
        }
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if run.step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def train(name: str, folder: Path, kill_at: int | None) -> dict[str, Any]:
    """Train one kind to its end; return everything two runs must agree in."""
    torch.set_num_threads(1)
    seed_all(7)
    parts = KINDS[name].build()
    if not parts.pop("unseeded", False):
        seed_all(7)
    model = parts.get("model") or Net()
    optimizer = parts.get("optimizer", torch.optim.Adam)(model.parameters(), lr=0.01)
    rate = parts.get("lr_lambda")
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate) if rate is not None else None
    engine = Engine(
        model, optimizer, parts.get("criterion") or nn.CrossEntropyLoss(), lr_scheduler=scheduler
    )
    trace = folder.with_suffix(".trace")
    stock = [hooks.Loss(), hooks.Checkpoint("2st", keep=3), hooks.LogFile(), Trace(trace, kill_at)]
    trainer = Trainer(
        engine, [*stock, *parts.get("hooks", [])], step=parts.get("step"), run_dir=folder
    )
    limits = parts.get("limits", {"epochs": EPOCHS})
    trainer.fit(parts["loader"], parts.get("val"), **limits)
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    return {
        "steps": list({row["step"]: row for row in rows}.values()),
        "engine": digest(engine.state_dict(), exact=True),
        "history": [dict(row) for row in trainer.history],
        "draws": torch.rand(3).tolist(),
    }


def attempt(name: str, folder: Path, kill_at: int | None = None) -> dict[str, Any] | None:
    """Train in a process of its own; return None if it was killed."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_child, args=(theirs, name, folder, kill_at))
    process.start()
    theirs.close()
    while process.is_alive() and not ours.poll(0.05):
        pass  # its loader workers keep the pipe open for a while after a kill
    try:
        result = ours.recv() if ours.poll() else None
    except EOFError:
        result = None
    process.join()
    if isinstance(result, str):
        raise AssertionError(result)
    return result


def _child(pipe: Any, name: str, folder: Path, kill_at: int | None) -> None:
    logging.getLogger().handlers.clear()  # those of the test runner, which would hide warnings
    sys.stderr = folder.with_suffix(".err").open("a", buffering=1)
    try:
        pipe.send(train(name, folder, kill_at))
    except BaseException as error:
        import traceback

        pipe.send("".join(traceback.format_exception(error)))


def outcome(name: str, folder: Path) -> tuple[str, list[str], list[str]]:
    """Return what became of a kind, which parts differ, and what was reported at the start.

    The outcome is "exact" or "reported", or what is wrong: "silent" or "false alarm".
    """
    unseeded = "unseeded" in name
    whole = folder / "whole"
    if unseeded:  # both runs begin with the same first checkpoint
        assert attempt(name, whole, 1) is None
        _copy(whole, folder / "killed")
    expected = attempt(name, whole)
    assert expected is not None
    killed = folder / "killed"
    reported: list[str] = []
    for kill_at in KILLS:
        assert attempt(name, killed, kill_at) is None, f"not killed at step {kill_at}"
        if kill_at == KILLS[0]:
            reported = reports(killed)
    found = attempt(name, killed)
    assert found is not None
    assert not killed.with_name("killed-2").exists(), "it was not resumed"
    different = [key for key in expected if expected[key] != found[key]]
    if different:
        return ("reported" if reported else "silent"), different, reported
    return ("false alarm" if reported else "exact"), different, reported


def _copy(source: Path, target: Path) -> None:
    import shutil

    shutil.copytree(source, target)
    shutil.copy(source.with_suffix(".trace"), target.with_suffix(".trace"))


def reports(folder: Path) -> list[str]:
    """Return the warnings about state that a run has shown."""
    lines = folder.with_suffix(".err").read_text().splitlines()
    return [
        line for line in lines if line.startswith("warning:") and any(w in line for w in WARNING)
    ]
