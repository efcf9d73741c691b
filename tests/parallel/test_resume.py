"""Runs of several processes resume: to the same bits, or in another layout.

``make layouts`` runs all of them, and ``make reshard`` every pair of layouts; otherwise a seeded
sample runs.
"""

import functools

import pytest
import torch

from stoker import Layout, load_weights
from support.killable_run import differences
from support.pool import pool
from support.sample import sample
from support.tasks import every_layout as layouts_all

pytestmark = pytest.mark.process

SAME = [
    Layout(replicate=2),
    Layout(shard=2),
    Layout(tensor=2),
    Layout(pipeline=2),
    Layout(pipeline=2, schedule="interleaved"),
    Layout(pipeline=2, shard=2),
    Layout(shard=2, tensor=2),
]


def named(layout):
    if layout is None:
        return "one process"
    return f"{layout} {layout.schedule}" if layout.pipeline > 1 else str(layout)


def run(layout, *args):
    if layout is None:
        return [layouts_all.resumable(None, *args)]
    return pool().run(layout.processes, layouts_all.resumable, layout, *args)


@pytest.mark.parametrize(
    "layout", sample("STOKER_LAYOUTS", SAME, 2, [Layout(shard=2), Layout(pipeline=2)]), ids=named
)
def test_a_run_that_is_broken_off_ends_at_the_same_bits(layout, tmp_path):
    complete = run(layout, tmp_path / "uninterrupted", None, 0.2)
    assert set(run(layout, tmp_path / "broken", 3, 0.2)) == {None}
    assert set(run(layout, tmp_path / "broken", 8, 0.2)) == {None}
    again = run(layout, tmp_path / "broken", None, 0.2)
    assert differences([*map(list, complete)], [*map(list, again)]) == []


MOVES = [
    (Layout(replicate=2), None),
    (None, Layout(replicate=2)),
    (Layout(replicate=2), Layout(replicate=4)),
    (Layout(shard=2), None),
    (Layout(shard=2), Layout(shard=4)),
    (Layout(shard=2), Layout(replicate=2)),
    (Layout(replicate=2), Layout(shard=2)),
    (Layout(tensor=2), None),
    (Layout(tensor=2), Layout(shard=2)),
    (None, Layout(shard=2, tensor=2)),
    (Layout(pipeline=2), None),
    (None, Layout(pipeline=2)),
    (Layout(pipeline=2, shard=2), Layout(replicate=2)),
    (Layout(replicate=2), Layout(pipeline=2, schedule="interleaved")),
]


@functools.cache
def uninterrupted(folder):
    return layouts_all.resumable(None, folder, None, 0.0)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return uninterrupted(tmp_path_factory.mktemp("uninterrupted"))


@pytest.mark.parametrize(("first", "second"), sample("STOKER_LAYOUTS", MOVES, 6), ids=named)
def test_a_run_resumes_in_another_layout(first, second, tmp_path, expected):
    assert set(run(first, tmp_path, 3, 0.0)) == {None}
    weights, averages, history, *_ = run(second, tmp_path, None, 0.0)[0]
    for found, wanted in ((weights, expected[0]), (averages, expected[1])):
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-10)
    assert history[-1]["train/loss"] == pytest.approx(expected[2][-1]["train/loss"], abs=1e-10)
    assert history[-1]["val/accuracy"] == pytest.approx(expected[2][-1]["val/accuracy"])


@pytest.mark.parametrize("layout", [Layout(shard=2), Layout(pipeline=2)], ids=named)
def test_one_process_takes_the_weights_of_a_checkpoint_in_shards(layout, tmp_path):
    weights = run(layout, tmp_path, None, 0.2, False)[0][0]
    assert list(tmp_path.glob("checkpoints/*/model-00001-of-00002.safetensors")) != []
    model = layouts_all.engine_of(None, dtype=torch.float32, dropout=0.2, tied=False).model
    assert not any(load_weights(model, tmp_path).values())
    assert differences(model.state_dict(), weights) == []
