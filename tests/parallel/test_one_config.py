"""One config file trains in every layout, and the layout does not change what it trains to.

``make layouts`` runs all of them; otherwise a seeded sample runs, and `test_layouts` trains a
smaller model in every one.
"""

import functools
import tempfile
from pathlib import Path

import pytest

from support.pool import pool
from support.sample import sample
from support.tasks import one_config

pytestmark = pytest.mark.process

TWO = [
    "replicate=2",
    "shard=2",
    "tensor=2",
    "pipeline=2",
    "pipeline=2 schedule=gpipe microbatches=4",
    "pipeline=2 schedule=interleaved",
    "pipeline=2 schedule=zero-bubble virtual=2",
]
FOUR = [
    "replicate=2 shard=2",
    "replicate=2 tensor=2",
    "shard=2 tensor=2",
    "pipeline=2 replicate=2",
    "pipeline=2 shard=2 schedule=interleaved",
]


@functools.cache
def alone():
    with tempfile.TemporaryDirectory() as folder:
        return one_config.train(Path(folder))


def check(processes, options, folder):
    parallel = dict(option.split("=") for option in options.split())
    parts = int(parallel.get("replicate", 1)) * int(parallel.get("shard", 1))
    found = pool().run(
        processes, one_config.train, folder, f"train_loader.batch_size={16 // parts}",
        *(f"run.parallel.{name}={value}" for name, value in parallel.items()),
    )  # fmt: skip
    assert len(alone()) > 3
    for losses in found:
        assert losses == pytest.approx(alone(), rel=1e-4)


@pytest.mark.parametrize("options", sample("STOKER_LAYOUTS", TWO, 3))
def test_the_transformer_of_the_examples_trains_in_two_processes(options, tmp_path):
    check(2, options, tmp_path)


@pytest.mark.parametrize("options", sample("STOKER_LAYOUTS", FOUR, 1))
def test_the_transformer_of_the_examples_trains_in_four_processes(options, tmp_path):
    check(4, options, tmp_path)
