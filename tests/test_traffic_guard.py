"""Saves, streams and steps move no more than they must: bytes, system calls, syncs and messages.

Nothing is timed. Each limit is what was counted when it was last looked at, with a little slack.
"""

import os
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from stoker import Engine, Trainer, data, hooks
from stoker.checkpoint import Checkpoints
from stoker.core.op_counter import counted
from support.pool import pool
from support.tasks import traffic

SIZE = 1 << 20
"""Bytes of a tensor."""


class System(Counter):
    """Counts calls of the system by their names, and the bytes they move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **sizes) -> None:
        super().__init__()
        for name, size in sizes.items():
            monkeypatch.setattr(os, name, self._counting(name, getattr(os, name), size))

    def _counting(self, name, call, size):
        def counting(*args):
            result = call(*args)
            self[name] += 1
            self["bytes"] += size(result)
            return result

        return counting


class Copies(TorchDispatchMode):
    """Counts the bytes that copies of tensors write."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.copy_, torch.ops.aten.clone):
            self.count += args[0].numel() * args[0].element_size()
        return func(*args, **(kwargs or {}))


def state(number):
    return {"model": {str(n): torch.full((SIZE // 4,), float(number)) for n in range(4)}}


def test_a_save_writes_each_byte_once_and_syncs_each_file_once(tmp_path, monkeypatch):
    system = System(monkeypatch, write=int, fsync=lambda _: 0)
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2, 3):
            system.clear()
            checkpoints.save(step, state(step), wait=True)
            assert 4 * SIZE <= system["bytes"] < 4 * SIZE + 16_384
            files = len([*(tmp_path / f"step-{step:08}").iterdir()])
            assert system["write"] <= 4 * files
            assert system["fsync"] <= 2 * files + 3


def test_training_waits_for_one_copy_of_the_state(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2, 3):
            values = state(step)
            with Copies() as copies:
                checkpoints.save(step, values)
            assert copies.count <= 4 * SIZE


@pytest.mark.parametrize(("given", "most"), [(list, 0), (lambda: hooks.default(progress=False), 1)])
def test_a_step_does_not_wait_for_a_value_of_a_tensor(given, most):
    def syncs(steps):
        model = nn.Linear(2, 1)
        engine = Engine(model, torch.optim.SGD(model.parameters(), 0.1), nn.MSELoss())
        batches = [(torch.ones(4, 2), torch.ones(4, 1))] * steps
        with counted() as counts:
            Trainer(engine, given()).fit(batches, epochs=1)
        return counts.syncs

    syncs(60)  # what is done once per process
    assert syncs(150) - syncs(100) <= most * 2  # lines of the log, one per 50 steps


@pytest.fixture
def lines(tmp_path):
    for number in range(4):
        text = "".join(f'{{"number": {n}, "text": "{"x" * 90}"}}\n' for n in range(5_000))
        (tmp_path / f"{number}.jsonl").write_text(text)
    list(data.stream(tmp_path, shuffle=False).batch(1_000))  # makes the index
    return tmp_path, 4 * len(text)


def reads(monkeypatch):
    return System(monkeypatch, open=lambda _: 0, pread=len, preadv=int)


def test_an_epoch_of_a_stream_reads_each_byte_once(lines, monkeypatch):
    folder, size = lines
    for shuffle in (False, 1_000):
        stream = data.stream(folder, shuffle=shuffle, seed=1).batch(100)
        with monkeypatch.context() as patch:
            system = reads(patch)
            assert sum(1 for _ in stream) == 200
        assert size <= system["bytes"] < 1.1 * size
        assert system["open"] < 100


def test_a_resumed_stream_reads_no_record_before_its_position(lines, monkeypatch):
    folder, size = lines
    stream = data.stream(folder, shuffle=False).batch(100)
    batches = iter(stream)
    for _ in range(175):
        next(batches)
    position = stream.state_dict()
    resumed = data.stream(folder, shuffle=False).batch(100)
    resumed.load_state_dict(position)
    system = reads(monkeypatch)
    assert sum(1 for _ in resumed) == 25
    assert system["bytes"] < 0.2 * size


@pytest.mark.process
def test_logical_ranks_send_no_more_than_an_all_reduce():
    for found in pool().run(2, traffic.of_logical_ranks, 2, 4):
        assert found["bytes"] <= 1.05 * found["all-reduce"]
        assert found["collectives"] <= 4
