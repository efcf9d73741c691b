"""Two processes on gloo, started once for all checks."""

import pytest
import torch

from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.state_tree import flatten
from stoker.checkpoint.sharding.planner import local_items, plan_for_rank
from stoker.checkpoint.sharding.write_plan import plan_single_process
from support.tasks.checkpoint import net, state, tensors, train
from support.tasks.two_ranks import found_by_two

pytestmark = pytest.mark.process


def trained():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optimizer)
    return state(model, optimizer)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    with Checkpoints(folder / "one") as checkpoints:
        checkpoints.save(1, trained(), {"rank": 0})
    return folder, found_by_two(folder, "support.tasks.checkpoint")


def test_shards_are_loaded_by_the_ranks_that_saved_them(ranks):
    for rank, found in enumerate(ranks[1]):
        checked = found["shards_of_two"]
        assert checked["equal"]
        assert checked["same_types"]
        assert checked["own"] == (rank, [1.0] * (rank + 1), 2)


def test_two_processes_to_one(ranks):
    folder, (first, _) = ranks
    checkpoints = Checkpoints(folder / "two")
    found = checkpoints.load(checkpoints.newest())
    expected = first["shards_of_two"]["full"]
    assert all(map(torch.equal, tensors(found.shared), expected))
    assert found.own["rank"] == 0
    net().load_state_dict(found.shared["model"])


def test_one_process_to_two(ranks):
    expected = trained()["model"]
    halves = [found["one_to_two"]["columns"] for found in ranks[1]]
    for found in ranks[1]:
        assert all(map(torch.equal, found["one_to_two"]["full"], expected.values()))
    assert torch.equal(torch.cat([torch.tensor(h) for h in halves], 1), expected["0.weight"])
    assert [found["one_to_two"]["own"] for found in ranks[1]] == [False, True]


def test_each_process_writes_its_shards(ranks):
    files, split = ranks[1][0]["pieces_in_the_manifest"]
    assert "model-00000-of-00002.safetensors" in files
    assert "model-00001-of-00002.safetensors" in files
    assert "rank-00001.safetensors" in files
    assert "model.0.weight" in split
    assert "model.2.weight" not in split  # one row, which rank 0 holds entirely


def test_replicated_tensors_are_written_once(ranks):
    assert ranks[1][0]["replicas"] == [
        "MANIFEST.json",
        "model.safetensors",
        "rank-00000.json",
        "rank-00001.json",
        "state.json",
        "state.safetensors",
    ]


def test_keys_of_all_ranks_are_merged(ranks):
    weights = {"0.weight": [0, 0], "1.weight": [1, 1], "shared": [1.0]}
    names = {"stage0": [0], "stage1": [1]}
    assert ranks[1][0]["halves"] == ranks[1][1]["halves"] == (weights, names)


def test_a_shared_value_that_differs_is_named(ranks):
    message = "shared → run → seed is 0 on rank 0 and 1 on rank 1, expected the same on all"
    assert all(found["contradiction"].startswith(message) for found in ranks[1])


def test_a_state_that_one_rank_cannot_save_fails_on_all(ranks):
    (first, left), (second, _) = (found["one_refuses"] for found in ranks[1])
    assert first.startswith("CheckpointError: rank 1 failed: mine is a builtin_function")
    assert second.startswith("TypeError: mine is a builtin_function")
    assert left == ["step-00000002"]


def test_a_disk_that_fails_on_one_process_fails_the_save_of_all(ranks):
    (first, left), (second, _) = (found["one_cannot_write"] for found in ranks[1])
    assert first.startswith("rank 1 failed: checkpoint of step 2 could not be written")
    assert second.startswith("checkpoint of step 2 could not be written")
    assert left == [".lock", "step-00000001"]


def test_another_shape_is_rejected(ranks):
    message = "'model.0.weight' has shape [5, 4] in the checkpoint and [6, 4] in this run"
    assert all(found["another_shape"].startswith(message) for found in ranks[1])


def test_the_plan_of_a_single_process_is_that_of_the_planner():
    parts, _ = flatten(trained() | {"empty": torch.empty(0, 2), "number": torch.tensor(1)})
    assert plan_for_rank([local_items(parts)], 0) == plan_single_process(parts)
