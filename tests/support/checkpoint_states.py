"""Small states and folders for the tests of checkpoints."""

import multiprocessing
import os
import signal

import torch
from torch import nn

from stoker.checkpoint import Checkpoints

fork = multiprocessing.get_context("fork")


def state(number=0.0, size=50):
    return {
        "model": nn.Linear(3, 2).state_dict() | {"number": torch.full((size,), float(number))},
        "optimizer": {"state": {0: {"step": torch.tensor(number)}}, "lr": 0.1},
        "run": {"step": int(number)},
    }


def own():
    return {"torch": torch.get_rng_state()}


def save(folder, step, **options):
    with Checkpoints(folder, **options) as checkpoints:
        checkpoints.save(step, state(step), own())
    return checkpoints


def number_in(loaded):
    values = set(loaded.shared["model"]["number"].tolist())
    assert len(values) == 1
    assert loaded.shared["run"]["step"] == values.copy().pop()
    return values.pop()


def in_child(function, *arguments, **environment):
    """How a forked process ended that ran the function."""

    def run():
        os.environ.update(environment)
        torch.set_num_threads(1)
        function(*arguments)

    child = fork.Process(target=run)
    child.start()
    child.join(timeout=600)
    return child.exitcode


KILLED = -signal.SIGKILL
