import pytest

from support.pool import pool
from support.tasks.towhee import train

pytestmark = pytest.mark.process


def test_two_processes_end_with_the_same_weights_results_and_folders(tmp_path):
    one = train(str(tmp_path / "one"), 8)
    two = pool().run(2, train, str(tmp_path / "two"), 8)
    assert two[0][0] == two[1][0]
    assert two[0][2] == one[2] == ["epoch_1", "epoch_2", "final_epoch"]
    assert two[0][1]["eval_epoch_metric"] == two[1][1]["eval_epoch_metric"]
    assert two[0][1]["eval_epoch_loss"] == pytest.approx(two[1][1]["eval_epoch_loss"])
