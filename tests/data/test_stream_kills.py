"""Trainings on streams of every format are killed with SIGKILL and end at the same bits.

`make streams` kills each of them many times.
"""

import os
import random
from pathlib import Path

import pytest
import torch
from torch import nn

from stoker import Engine, Trainer, data, hooks
from stoker.testing import assert_resumes_exactly
from support.stream_data import FORMATS, RECORDS, numbers, tokens_in

ALL = bool(os.environ.get("STOKER_STREAMS"))
KILLS = 18 if ALL else 1


def noisy(number):
    return number + random.random() + float(torch.rand(()))


def plain(source):
    return numbers(source).map(noisy)


def filtered(source):
    return numbers(source).filter(lambda number: number % 5).map(noisy)


def packed(source):
    tokens = data.stream(source, shuffle=64, seed=5).map(tokens_in)
    return tokens.pack(7, end=1).map(lambda sequence: float(sequence.sum()))


def mixed(source):
    return data.mix([numbers(source), numbers(source, seed=9)], [2, 1], until=RECORDS)


def by_workers(source):
    return numbers(source, workers=2).map(noisy)


PIPELINES = {
    "jsonl": by_workers,
    "text": packed,
    "parquet": plain,
    "webdataset": filtered,
    "datasets": mixed,
    "iterable": packed,
}
SAMPLE = list(PIPELINES) if ALL else ["jsonl", "iterable"]


def as_batch(values):
    x = torch.tensor(values, dtype=torch.float32)[:, None] / RECORDS
    return x, 2 * x


def train(name, source, run_dir):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    engine = Engine(model, torch.optim.Adam(model.parameters()), nn.MSELoss())
    batches = PIPELINES[name](source).batch(40, collate=as_batch)
    trainer = Trainer(engine, [hooks.Checkpoint(every="7st"), hooks.Loss()], run_dir=run_dir)
    trainer.fit(batches, epochs=2)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_a_training_on_a_stream_that_is_killed_ends_at_the_same_bits(name, tmp_path):
    source = FORMATS[name](tmp_path)
    verdict = assert_resumes_exactly(
        lambda run_dir: train(name, source, Path(run_dir)), kills=KILLS, seed=len(name)
    )
    assert len(verdict.kills) == KILLS


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", ["text", "parquet"] if ALL else ["parquet"])
def test_two_processes_on_a_stream_that_are_killed_end_at_the_same_bits(name, tmp_path):
    source = FORMATS[name](tmp_path)
    verdict = assert_resumes_exactly(
        lambda run_dir: train(name, source, Path(run_dir)), kills=-(-KILLS // 2), seed=3, nproc=2
    )
    assert verdict.processes == 2
