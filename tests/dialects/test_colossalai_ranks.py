"""Colossal-AI's names in several processes."""

import pytest
import torch

from stoker.dialects.colossalai.core import global_context as gpc
from support.pool import pool
from support.tasks import colossalai as tasks

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def no_config():
    yield
    gpc.config = type(gpc.config)()


@pytest.mark.row("C28")
@pytest.mark.parametrize("through_trainer", [False, True])
def test_copies_share_gradients_once_per_update(through_trainer):
    (one, exchanges, updates), (other, _, _) = pool().run(2, tasks.accumulates, through_trainer)
    assert (exchanges, updates) == (2, 2)
    assert all(map(torch.equal, one, other))


@pytest.mark.row("C17", "C20", "C31", "C32")
def test_one_process_reports_for_all(tmp_path):
    (one, said), (other, nothing) = pool().run(2, tasks.tells_a_terminal, tmp_path)
    assert one == other
    first, second = ((tmp_path / "logs" / f"rank_{r}.log").read_text() for r in (0, 1))
    assert first.count("[Epoch 1 / Train]") == first.count("[Epoch 2 / Test]") == 1
    assert second == "colossalai - ranks - INFO: all say this: 1\n"
    assert [p.name for p in (tmp_path / "tb").iterdir()] == ["global_rank_0"]
    assert len(list((tmp_path / "ckpt").glob("epoch*.pt"))) == 2
    assert (said.count("epoch 2/2"), nothing.count("epoch 2/2")) == (1, 0)


@pytest.mark.row("Z08")
@pytest.mark.parametrize(
    "more", [{}, {"model": {"num_chunks": 2}}], ids=["1f1b", "interleaved"]
)  # fmt: skip
def test_a_pipeline_trains_as_one_process_and_the_last_stage_alone_has_outputs(tmp_path, more):
    config = dict(parallel=dict(pipeline=2), NUM_MICRO_BATCHES=4, TENSOR_SHAPE=(2, 8), **more)
    first, last = pool().run(2, tasks.pipeline, tmp_path / "split", config)
    alone = tasks.pipeline(tmp_path / "whole", {})
    assert first[0] == first[1] == [None, None, None]
    for seen, expected in zip((last[0], last[1]), (alone[0], alone[1]), strict=True):
        for part, whole in zip(seen, expected, strict=True):
            torch.testing.assert_close(part, whole)
    assert (first[2], last[2]) == ((None, False), ((8, 3), True))
    assert first[3] == last[3] == pytest.approx(alone[3], rel=1e-5)
    assert (first[5], alone[5]) == (True, False)
    for name, weight in alone[4].items():
        torch.testing.assert_close(first[4][name], weight)
    names = sorted(p.name for p in (tmp_path / "split").glob("*.pt"))
    assert names == ["epoch1-tp0-pp0.pt", "epoch1-tp0-pp1.pt"]


@pytest.mark.row("Z09")
def test_what_does_not_divide_is_refused_with_both_numbers():
    config = dict(parallel=dict(pipeline=2), NUM_MICRO_BATCHES=3, model=dict(num_chunks=2))
    for said in pool().run(2, tasks.refuses, config, 6):
        assert "3 micro-batches are not a multiple of 2 processes" in said
    config = dict(parallel=dict(pipeline=2), NUM_MICRO_BATCHES=4)
    for said in pool().run(2, tasks.refuses, config, 6):
        assert "a batch of 6 samples does not divide into 4 micro-batches" in said


@pytest.mark.parametrize("alike", [False, True], ids=["different stages", "equal stages"])
@pytest.mark.parametrize(
    "more", [{}, {"model": {"num_chunks": 2}}], ids=["1f1b", "interleaved"]
)  # fmt: skip
def test_stages_that_a_script_has_cut_train_like_the_complete_model(tmp_path, more, alike):
    config = dict(parallel=dict(pipeline=2), NUM_MICRO_BATCHES=4, **more)
    first, last = pool().run(2, tasks.cut_by_the_script, tmp_path / "split", config, alike)
    alone = tasks.cut_by_the_script(tmp_path / "whole", {}, alike)
    torch.testing.assert_close(first[0], alone[0])
    torch.testing.assert_close(last[0], alone[0])
    assert len(first[1]) == len(last[1]) == 4  # each has the momentum of its two layers
    assert first[2] == {"PIPELINE": [0, 1], "DATA": [0]}
    saved = torch.load(tmp_path / "split" / "all.pt", weights_only=True)
    together = torch.cat([weight.flatten() for _, weight in sorted(saved["model"].items())])
    torch.testing.assert_close(together, alone[0])
    assert len(saved["optimizer"]) == 2


@pytest.mark.parametrize(
    ("policy", "more"),
    [("customized", {}), ("balanced", {"model": {"num_chunks": 2}})],
    ids=["at a mark", "interleaved"],
)
def test_a_model_that_a_context_has_cut_trains_like_the_complete_one(policy, more):
    sequence = [
        "first",
        torch.relu,
        "body.0",
        "SPLIT_NODE",
        "body.1",
        (torch.tanh, "front"),
        "head",
    ]
    config = dict(parallel=dict(pipeline=2), NUM_MICRO_BATCHES=4, **more)
    first, last = pool().run(2, tasks.cut_by_name, config, policy, sequence)
    alone = tasks.cut_by_name({}, "balanced", sequence)
    if not more:
        assert [*first, *last] == [f"{n}.{w}" for n in ("body.0", "first", "head", "body.1")
                                   for w in ("weight", "bias")]  # fmt: skip
    together = {**first, **last}
    assert together.keys() == alone.keys()
    for name, weight in alone.items():
        torch.testing.assert_close(together[name], weight)


def test_stages_that_make_no_model_are_refused_with_their_number():
    config = dict(parallel=dict(pipeline=2))
    for said in pool().run(2, tasks.wrong_stages, config):
        assert "pipeline stage 0 has passed 2 stages, expected 1 in each process" in said


def test_stages_send_tensors_to_their_neighbours():
    first, last = pool().run(2, tasks.talks_to_its_neighbours)
    assert first == (None, [None, [1.0], [1.0], None, None, [1.0], [None, 1.0]], 3.0, 0.0)
    shapes = [(2, 3), (3,), ()]
    assert last == ((2, 3), [[0.0], None, None, [0.0], shapes, [0.0, 5.0], [0.0, None]], 3.0, 1.0)
