"""With logical ranks, any number of processes trains to the same bits.

`make same-bits` compares every training on 1 to 4 processes with 4, 6 and 8 logical ranks; without
it, each of them on a number of processes that divides the logical ranks, and on one that does not.
Shards of the optimizer do not change the bits.
"""

import functools
import os

import pytest

from stoker.checkpoint.format.names import step_in_name
from support.pool import pool
from support.tasks import logical

pytestmark = pytest.mark.process

ALL = [
    (kind, ranks, processes)
    for kind in logical.KINDS
    for ranks in (4, 6, 8)
    for processes in (1, 2, 3, 4)
]
SOME = [
    ("mlp", 4, 3),
    ("convnet", 6, 4),
    ("convnet", 4, 2),
    ("transformer", 8, 3),
    ("stream", 4, 3),
    ("records", 4, 3),
]


SHARDED = [("mlp", 8, 2), ("convnet", 4, 3), ("transformer", 6, 4), ("stream", 4, 2)]


@functools.cache
def on_one(kind, ranks):
    return pool().run(1, logical.train, kind, ranks)[0]


@pytest.mark.parametrize(
    ("kind", "ranks", "processes"), ALL if os.environ.get("STOKER_SAME_BITS") == "all" else SOME
)
def test_any_number_of_processes_ends_at_the_same_bits(kind, ranks, processes):
    wanted = on_one(kind, ranks)
    for found in pool().run(processes, logical.train, kind, ranks):
        assert found == wanted


@pytest.mark.parametrize(
    ("kind", "ranks", "processes"),
    [case for case in ALL if case[2] > 1]
    if os.environ.get("STOKER_SAME_BITS") == "all"
    else SHARDED,
)
def test_shards_end_at_the_same_bits(kind, ranks, processes):
    wanted = on_one(kind, ranks)
    for found in pool().run(processes, logical.train, kind, ranks, None, None, "shard"):
        assert found == wanted


def test_a_sharded_run_continues_on_other_processes_and_in_copies(tmp_path):
    folder = tmp_path / "run"
    for processes, break_after, over in ((4, 1, "shard"), (3, 3, "shard"), (2, 4, "replicate")):
        found = pool().run(processes, logical.train, "transformer", 6, folder, break_after, over)
        assert found == [{}] * processes
    found = pool().run(2, logical.train, "transformer", 6, folder, None, "shard")
    assert found == [on_one("transformer", 6)] * 2
    assert [*tmp_path.iterdir()] == [folder]


def test_a_fused_optimizer_is_rejected_for_shards():
    for message in pool().run(2, logical.train_fused):
        assert message.startswith("AdamW has fused=True, whose kernel rounds the last elements")


@pytest.mark.parametrize("kind", logical.KINDS)
def test_a_run_continues_on_other_numbers_of_processes_to_the_same_bits(kind, tmp_path):
    folder = tmp_path / "run"
    for processes, break_after in ((4, 1), (3, 3)):
        found = pool().run(processes, logical.train, kind, 6, folder, break_after)
        assert found == [{}] * processes
        newest = max(step_in_name(path.name) or 0 for path in (folder / "checkpoints").iterdir())
        assert newest == break_after
    assert pool().run(1, logical.train, kind, 6, folder) == [on_one(kind, 6)]
    assert [*tmp_path.iterdir()] == [folder]  # one run, not another one for each start
