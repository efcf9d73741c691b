"""A step that runs out of memory is run again, and trains to the same weights."""

import logging
from itertools import product

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import Engine, Layout, Output, Trainer, hooks
from stoker.engine import PipelineSchedule, PlainSchedule, RetrySchedule, schedule_for
from support.pool import pool
from support.tasks.layouts import Break
from support.tasks.retried import (
    ERRORS,
    FailAt,
    TooLarge,
    data,
    model_of,
    trained,
    trained_with_a_failure,
)


@pytest.fixture(scope="module")
def expected():
    return trained(RetrySchedule())


@pytest.mark.parametrize("error", ERRORS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_failure_that_passes_leaves_the_same_bits(expected, error, where):
    for at in range(8):  # each micro-batch of the training
        assert trained(RetrySchedule(), FailAt(at, error, where)) == expected


def test_without_a_failure_the_bits_are_those_of_the_plain_schedule(expected):
    assert trained(PlainSchedule()) == expected


def test_smaller_micro_batches_train_to_the_same_weights():
    plain = trained(PlainSchedule(), dropout=0.0, norm=False)
    retry = RetrySchedule()
    found = trained(retry, TooLarge(3), dropout=0.0, norm=False)
    assert retry.limit == 3
    for name, weight in plain[0].items():
        torch.testing.assert_close(
            torch.tensor(found[0][name]), torch.tensor(weight), rtol=0, atol=1e-12
        )
    assert found[1] == pytest.approx(plain[1], abs=1e-12)
    assert found[2] == plain[2]


def test_ignored_targets_are_weighed_in_smaller_micro_batches():
    def train(schedule, failure=None):
        torch.manual_seed(0)
        model = nn.Linear(4, 3).double()
        engine = Engine(model, torch.optim.SGD(model.parameters(), 0.1), nn.CrossEntropyLoss())
        if failure is not None:
            failure.install(model)
        x = torch.randn(8, 4, dtype=torch.float64)
        y = torch.tensor([0, -100, -100, -100, 1, 2, -100, 0])
        Trainer(engine, [], schedule=schedule).fit([(x, y)] * 3, epochs=1)
        return model.weight.detach()

    torch.testing.assert_close(train(RetrySchedule(), TooLarge(3)), train(None), rtol=0, atol=1e-12)


def test_what_smaller_micro_batches_change_is_reported_once(caplog):
    with caplog.at_level(logging.WARNING):
        trained(RetrySchedule(), TooLarge(3))
    texts = [record.message for record in caplog.records]
    assert sum("batch norms compute" in text for text in texts) == 1
    assert sum("dropout draws other" in text for text in texts) == 1
    assert sum("micro-batches of 3 samples" in text for text in texts) == 1


def test_the_size_that_fits_survives_a_kill(tmp_path):
    def train(folder, break_at=None):
        retry = RetrySchedule()
        stop = [Break(break_at)] if break_at is not None else []
        found = trained(retry, TooLarge(3), *stop, hooks.Checkpoint("1st"), run_dir=folder)
        return found, retry.limit

    expected = train(tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "b", break_at=2)
    assert train(tmp_path / "b") == expected


def test_a_sample_that_does_not_fit_is_an_error():
    with pytest.raises(RuntimeError, match="not even a micro-batch of 1 sample fits"):
        trained(RetrySchedule(), TooLarge(0), norm=False)


def test_batches_that_cannot_be_divided_are_an_error():
    def step(engine, batch):
        raise MemoryError

    model = nn.Linear(4, 3)
    engine = Engine(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(RuntimeError, match="a batch of type tuple cannot be divided"):
        Trainer(engine, [], step=step, schedule=RetrySchedule()).fit(
            [([[1.0], [2.0]], [1, 2])], epochs=1
        )


def test_other_errors_are_raised_as_they_are():
    with pytest.raises(RuntimeError, match="something else"):
        trained(RetrySchedule(), FailAt(1, RuntimeError("something else"), "forward"))


def test_layouts_in_which_processes_run_together_are_refused():
    for layout in (Layout(shard=2), Layout(pipeline=2), Layout(replicate=2, sync_batchnorm=True)):
        with pytest.raises(ValueError, match=r"RetrySchedule \(run.micro_batch=auto\) runs micro"):
            schedule_for(layout, RetrySchedule())
    assert isinstance(schedule_for(Layout(pipeline=2)), PipelineSchedule)
    for limit in (0, "auto"):
        with pytest.raises((ValueError, TypeError), match="limit must be an integer"):
            RetrySchedule(limit)


@pytest.mark.process
def test_one_of_two_processes_retries_alone():
    expected = pool().run(2, trained_with_a_failure, None, 0)
    for rank, at in product((0, 1), range(4)):  # each micro-batch of a process
        assert pool().run(2, trained_with_a_failure, rank, at) == expected


def test_samples_weighed_by_a_step_count_once():
    model = model_of(0.0, norm=False)
    engine = Engine(model, torch.optim.SGD(model.parameters(), 0.1), nn.MSELoss())
    FailAt(1, MemoryError(), "forward").install(model)
    seen = []

    def step(engine, batch):
        x, y = batch
        return Output(engine.criterion(engine(x), y), weight=2 * len(x))

    class Look(hooks.Hook):
        def after_step(self, run):
            seen.append(sum(output.weight for output in run.outputs))

    loader = DataLoader(TensorDataset(*data()), batch_size=6)
    Trainer(engine, [Look()], step=step, schedule=RetrySchedule(), accumulate=2).fit(
        loader, epochs=1
    )
    assert seen == [24, 24]
