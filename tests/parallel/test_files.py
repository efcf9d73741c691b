"""Data, folders, files and terminals that several processes share."""

from collections import Counter
from itertools import chain

import pytest

from support.pool import pool
from support.tasks import files as file_tasks
from support.toys import same_bits

pytestmark = pytest.mark.process


def flat(lists):
    return list(chain.from_iterable(lists))


@pytest.mark.row("O21")
def test_fit_shards_loaders_or_sets_their_epoch_or_leaves_them():
    (first, sampler), (second, _) = pool().run(2, file_tasks.read_by_fit)
    every = list(range(24))
    epochs = {name: heard for name, (_, heard) in first.items()}
    shuffled, others = (
        [flat(one["shuffled"][0][at : at + 4]) for at in (0, 4)] for one in (first, second)
    )
    for epoch in (0, 1):
        assert sorted(shuffled[epoch] + others[epoch]) == every
    assert shuffled[0] != shuffled[1]
    assert epochs["shuffled"] == epochs["sharded"] == epochs["unsharded"] == [0, 1]
    assert sampler == [0, 1]
    for name in ("sharded", "stream"):
        read = [flat(one[name][0]) for one in (first, second)]
        assert read == [every[0::2] * 2, every[1::2] * 2]
    for one in (first, second):
        assert flat(one["unsharded"][0]) == every * 2


@pytest.mark.row("O19")
def test_a_folder_with_checkpoints_is_resumed_or_rejected_by_all(tmp_path):
    folder = tmp_path / "checkpoints"
    assert pool().run(2, file_tasks.starting, folder, "auto") == [(8, 8)] * 2
    refused = pool().run(2, file_tasks.starting, folder, "never")
    assert refused[0] == refused[1]
    assert refused[0].startswith(f"resume='never', but '{folder}' holds the checkpoints of another")
    assert pool().run(2, file_tasks.starting, folder, "auto") == [(0, 8)] * 2
    refused = pool().run(2, file_tasks.locked, folder)
    for error in refused:
        assert f"'{folder}' is in use by process" in error


def test_ranks_without_a_shared_disk_are_reported_before_training(tmp_path):
    (first, saved), (second, also) = pool().run(2, file_tasks.without_shared_disk, tmp_path)
    assert first == f"rank 1 failed: {second}"
    assert second.startswith("rank 1 on ")
    assert "does not see the folder 'run/checkpoints' of rank 0 on" in second
    assert "on a disk that every node mounts" in second
    assert saved == also == []


def test_ranks_fall_back_together_if_one_cannot_read_the_newest_checkpoint(tmp_path):
    folder = tmp_path / "checkpoints"
    assert pool().run(2, file_tasks.damaged_on_one_rank, folder) == [(4, 8)] * 2


@pytest.mark.row("X02", "O23")
def test_one_process_writes_each_shared_file(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (first, there), (second, also) = pool().run(2, file_tasks.with_writers, tmp_path / "run")
    assert there == also == [True]  # when the save is over, it is over for both
    assert {name for name in second if "rank1" not in name and "rank-00001" not in name} == set()
    assert {"metrics.jsonl", "metrics.csv", "log.txt", "model.safetensors"} <= first.keys()
    assert "ledger.jsonl" in first
    assert not first.keys() & second.keys()
    events = list((tmp_path / "run" / "tb").iterdir())
    assert len(events) == 1
    read = EventAccumulator(str(tmp_path / "run" / "tb"))
    read.Reload()
    for tag in ("train/loss", "lr", "mine", "val/loss"):
        steps = [event.step for event in read.Scalars(tag)]
        assert steps == sorted(steps)
        assert steps[-1] == 12


@pytest.mark.row("C31")
def test_a_logger_is_one_and_knows_its_rank(tmp_path):
    (one, first), (two, second) = pool().run(2, file_tasks.logging_twice, tmp_path / "run")
    assert one
    assert two
    assert first == ["of rank 0 alone", "of both"]
    assert second == ["of both", "of rank 1"]
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["config.yaml", "env.json", "identity.json", "log.txt", "log.txt.rank1"]


@pytest.mark.row("C32")
def test_one_process_draws_a_bar_that_fills_in_each_task():
    first, second = pool().run(2, file_tasks.drawn)
    assert set(second.values()) == {""}
    assert "epoch 1/1" in first["fit"]
    assert "loss" in first["fit"]
    for task, text in first.items():
        assert "12/12" in text, task


@pytest.mark.row("L14")
def test_samples_come_in_the_same_order_wherever_a_run_is_broken_off(tmp_path):
    seen: Counter[int] = Counter()
    for (numbers, weights), found in pool().run(2, file_tasks.broken_everywhere, tmp_path):
        seen.update(number for step in numbers for number in step)
        for step, (before, after, again) in enumerate(found, start=1):
            assert before == numbers[:step]
            assert after == numbers[step - 1 :]  # the step that was broken off was not saved
            assert same_bits(weights, again)
    assert seen == dict.fromkeys(range(22), 2)
