"""A training that resumes exactly passes; of one that does not, the first cause is named."""

import itertools
import os

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import Engine, Hook, Trainer, hooks
from stoker.config import ConfigError
from stoker.core.errors import StokerError
from stoker.testing import assert_resumes_exactly, prove
from support.trainings import Counting, Forgets, Jitter, OwnNoise, Points, training

pytestmark = pytest.mark.process


def told(tmp_path, *extra, **how):
    return prove(training(*extra, **how), tmp_path, threads=1)


def test_a_training_that_resumes_exactly_passes():
    verdict = assert_resumes_exactly(training())
    assert verdict.same
    assert (verdict.steps, len(verdict.kills), verdict.notes) == (12, 5, [])
    assert verdict.compared["weights"] == 13 * 9  # after each step and at the end
    assert verdict.compared["lines of metrics.jsonl"] > 6
    text = verdict.text()
    assert text.startswith("12 steps, killed 5 times: the same bits\n")
    for kind in (
        "during a step, at ",
        "during a save, at ",
        "during a validation, at ",
        "while fetching a batch",
    ):
        assert kind in text


def test_other_seeds_are_other_moments():
    first, second = (assert_resumes_exactly(training(), kills=3, seed=seed) for seed in (1, 2))
    assert [kill.where for kill in first.kills] != [kill.where for kill in second.kills]


@pytest.mark.parametrize("kind", ["step", "save", "eval", "data"])
def test_one_kind_of_moments_alone(kind):
    verdict = assert_resumes_exactly(training(), kills=2, at=[kind])
    assert len(verdict.kills) == 2


def test_a_hook_with_random_numbers_of_its_own(tmp_path):
    verdict = told(tmp_path, Jitter)
    assert verdict.difference.what.startswith("weights: 0.weight after step ")
    assert verdict.difference.suspects == ("hook Jitter: draw (Random)",)
    assert verdict.difference.attempt > 0
    assert "12 steps, killed 5 times: NOT the same bits" in verdict.text()


def test_a_hook_that_forgets_what_it_uses(tmp_path):
    verdict = told(tmp_path, Forgets)
    assert verdict.difference.what.startswith("weights: 0.weight after step ")
    assert verdict.difference.suspects == ("hook Forgets: scale (float)",)


class LosesItsWay(Hook):
    """Saves what it counts, and does not take it back."""

    def __init__(self) -> None:
        self.count = 0

    def after_step(self, run) -> None:
        self.count += 1

    def state_dict(self):
        return {"count": self.count}


def test_a_hook_that_does_not_take_back_its_state(tmp_path):
    difference = told(tmp_path, LosesItsWay).difference
    assert difference.what.startswith("hook LosesItsWay: key count after step ")
    assert int(difference.actual) < int(difference.expected)


def test_data_with_random_numbers_of_its_own(tmp_path):
    difference = told(tmp_path, data=OwnNoise).difference
    assert difference.what.startswith("batch contents in epoch ")
    assert difference.suspects[0] == "dataset of train_loader: draw (Generator)"


class OtherOrder(Points):
    """Gives its samples an order of its own, which it forgets."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.count = itertools.count(1)  # cannot be saved

    def __getitem__(self, index: int):
        self.reads = next(self.count)
        return self.x[self.reads % len(self)], self.reads % 2


def test_data_in_another_order(tmp_path):
    difference = told(tmp_path, data=OtherOrder).difference
    assert difference.what.startswith("batch order in epoch ")
    assert "(it used the batches of step " in difference.what


def test_a_model_with_a_counter_that_is_not_saved(tmp_path):
    difference = told(tmp_path, more=[Counting]).difference
    assert difference.what.startswith("loss at step ")
    assert difference.suspects == ("model 3: seen (int)",)
    assert " instead of " in str(difference)


class Chance(Hook):
    """Has a part of every step decided by the machine."""

    def after_forward(self, run) -> None:
        torch.manual_seed(int.from_bytes(os.urandom(4), "big"))


def test_a_training_that_is_not_the_same_twice(tmp_path):
    verdict = told(tmp_path, Chance)
    assert verdict.difference.what == "loss at step 1"  # of its second batch
    assert "before the first kill: the training is not deterministic" in verdict.text()


def test_numbers_that_nobody_seeded_are_no_difference_if_they_are_saved():
    assert_resumes_exactly(training(seed=None), kills=3)


class FailsOnReturn(Hook):
    def load_state_dict(self, state) -> None:
        raise KeyError("scale")


def test_a_training_that_cannot_continue(tmp_path):
    verdict = told(tmp_path, FailsOnReturn)
    assert verdict.difference.what.startswith("attempt 2 failed: ")
    assert verdict.difference.what.endswith("KeyError: 'scale'")


def test_assert_raises_with_the_page():
    with pytest.raises(AssertionError, match="NOT the same bits\n\nfirst difference: loss at step"):
        assert_resumes_exactly(training(more=[Counting]))


def test_a_run_that_saves_nothing_is_refused():
    with pytest.raises(
        ConfigError, match="saves no checkpoints, so it starts from scratch after a kill"
    ):
        assert_resumes_exactly(training(checkpoint=False))


def test_a_run_that_saves_elsewhere_is_refused(tmp_path):
    def train(run_dir):
        training()(tmp_path / "mine")

    with pytest.raises(
        ConfigError, match=r"to '.*mine/checkpoints', which is outside the run folder"
    ):
        assert_resumes_exactly(train)


def test_an_error_of_the_training_itself_is_shown():
    def train(run_dir):
        print("so far so good")
        raise OSError("no data")

    with pytest.raises(StokerError, match=r"(?s)reference run failed: OSError: no data.*so far so"):
        assert_resumes_exactly(train)
    with pytest.raises(StokerError, match="Trainer.fit was not called"):
        assert_resumes_exactly(lambda run_dir: None)


def test_what_cannot_be_requested_is_refused():
    with pytest.raises(ValueError, match="unknown kind of moment 'sav'; did you mean 'save'?"):
        assert_resumes_exactly(training(), at=["sav"])
    with pytest.raises(ValueError, match="kills must be at least 1, got 0"):
        assert_resumes_exactly(training(), kills=0)


def two_fits(run_dir):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    data = TensorDataset(torch.arange(24.0).reshape(8, 3) / 24, torch.ones(8, 1))
    for name, rate in (("first", 0.1), ("second", 0.01)):
        engine = Engine(model, torch.optim.SGD(model.parameters(), rate), nn.MSELoss())
        own = [hooks.Checkpoint("1st")]
        Trainer(engine, own, run_dir=run_dir / name).fit(DataLoader(data, 2), epochs=1)


def test_a_program_of_two_fits():
    verdict = assert_resumes_exactly(two_fits, kills=4)
    assert verdict.steps == 8
    assert verdict.notes == ["the run has no validation, so it was not killed during one"]
    with pytest.raises(StokerError, match="none of the requested moments"):
        assert_resumes_exactly(two_fits, at=["eval"])


def dev_run_first(run_dir):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    data = DataLoader(TensorDataset(torch.arange(24.0).reshape(8, 3) / 24, torch.ones(8, 1)), 2)
    engine = Engine(model, torch.optim.SGD(model.parameters(), 0.1), nn.MSELoss())
    trainer = Trainer(engine, [hooks.Checkpoint("1st")], run_dir=run_dir)
    trainer.fit(data, fast_dev_run=True)
    trainer.fit(data, epochs=2)


def test_a_fast_dev_run_is_not_counted():
    assert assert_resumes_exactly(dev_run_first, kills=2).steps == 8


def test_data_that_workers_fetch():
    assert_resumes_exactly(training(workers=1), kills=2, at=["data", "step"])


def test_recording_changes_nothing(tmp_path):
    """R2: what a watched training leaves behind is what an unwatched one leaves."""
    from stoker.checkpoint import Checkpoints
    from stoker.core.digest import digest
    from stoker.testing.record import Recorder
    from stoker.testing.watcher import watching

    left = []
    for watched in (False, True):
        folder = tmp_path / str(watched)
        if watched:
            with watching(Recorder(tmp_path / "records", folder)):
                training()(folder)
        else:
            training()(folder)
        checkpoints = Checkpoints(folder / "checkpoints")
        last = checkpoints.load(checkpoints.newest())
        last.shared["hooks"].pop("Write(JsonLines)")
        last.shared["run"].pop("metrics")
        last.shared.pop("history")
        last.shared["events"]["series"].pop("memory/host")
        left.append({"shared": last.shared, "own": last.own})
    assert digest(left[0], exact=True) == digest(left[1], exact=True)
