"""Two processes on gloo, started once for all checks."""

import pytest
import torch

from stoker import hooks
from stoker.events import read_json_lines
from support.tasks.two_ranks import found_by_two
from support.toys import batches, net

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return folder, found_by_two(folder, "support.tasks.two_ranks")


@pytest.mark.row("O13")
def test_losses_are_weighted_by_samples_within_and_across_processes(found):
    _, (first, second) = found
    # 2 samples at 1, then 4 at 2 and 8 at 1: a mean over 14 samples, not over batches or ranks
    assert first["uneven_shards"] == second["uneven_shards"] == (2 * 1 + 4 * 2 + 8 * 1) / 14


@pytest.mark.row("O13")
def test_counts_are_added_over_processes(found):
    from stoker import Engine, Trainer

    alone = Trainer(Engine(net()), [hooks.Metrics(accuracy="accuracy")], step=None)
    alone.engine.set_criterion(torch.nn.CrossEntropyLoss())
    expected = alone.evaluate(batches())["val/accuracy"]
    _, (first, second) = found
    assert first["accuracy_over_both"] == second["accuracy_over_both"] == expected


def test_a_nan_on_one_process_stops_both_at_the_same_step(found):
    _, (first, second) = found
    assert first["a_nan_on_one_rank"] == second["a_nan_on_one_rank"] == 2


def test_one_process_writes_each_shared_file_and_each_has_its_log(found):
    folder, (first, _) = found
    about_it = ["config.yaml", "env.json", "identity.json"]
    written = ["log.txt", "log.txt.rank1", "metrics.jsonl", "model.safetensors"]
    assert first["files_of_a_run"] == [*about_it, *written]
    steps = [row["step"] for row in read_json_lines(folder / "run" / "metrics.jsonl")]
    assert steps == [1, 2, 3, 4, 5, 5]
