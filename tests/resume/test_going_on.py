"""What goes on, from where, and what does not."""

import json

import pytest
import torch
from torch import nn

from stoker import Engine, Trainer, hooks, load_weights
from stoker.core.errors import CheckpointError
from stoker.events import JsonLines
from support.toys import batches, engine, loader, net, same_bits, weights


class Stop(RuntimeError):
    pass


def stop_at(step):
    def fail(run):
        if run.step == step:
            raise Stop

    return hooks.Callback(after_step=fail)


def made(folder, *more, every="1st", model=None):
    stock = [hooks.Loss(), hooks.Checkpoint(every, keep=None), *more]
    return Trainer(engine(model), stock, run_dir=folder)


def test_a_skipped_nan_is_skipped_again_when_a_run_continues_with_it(tmp_path):
    data = batches()
    data[3] = (data[3][0] * float("nan"), data[3][1])
    guard = hooks.NaNGuard("skip")
    with pytest.raises(Stop):
        made(tmp_path / "run", guard, stop_at(3)).fit(data, epochs=1)
    again = made(tmp_path / "run", hooks.NaNGuard("skip"))
    again.fit(data, epochs=1)
    assert again.run.step == 4


@pytest.mark.parametrize("look", ["evaluate", "predict"])
def test_looking_at_a_model_before_training_does_not_start_from_scratch(tmp_path, look):
    for _ in range(2):
        run = made(tmp_path / "run")
        getattr(run, look)(batches(4))
        run.fit(batches(), epochs=1)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_beside_one_without_checkpoints_resumes_in_its_folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()
    for epochs in (1, 2):
        run = made(tmp_path / "run")
        run.fit(batches(), epochs=epochs)
    assert run.run.dir.name == "run-2"
    assert run.run.epoch == 2


def test_rows_of_others_in_a_file_of_the_user_stay(tmp_path):
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"step": 1}\n')
    run = made(tmp_path / "run", hooks.Write(JsonLines(mine), every=1))
    run.fit(batches(), epochs=1, fast_dev_run=True)
    run.fit(batches(), epochs=1)
    again = made(tmp_path / "run", hooks.Write(JsonLines(mine), every=1))
    again.fit(batches(), epochs=2)
    steps = [json.loads(line)["step"] for line in mine.read_text().splitlines()]
    assert steps[0] == 1
    assert sorted(set(steps[1:])) == list(range(1, run.run.step * 2 + 1))


def test_a_trainer_that_loads_resumes_from_what_it_loaded(tmp_path):
    first = made(tmp_path / "one")
    first.fit(batches(), epochs=1)
    path = first.save(tmp_path / "by hand")
    first.fit(batches(), epochs=2)
    wanted = weights(first.engine.model)
    first.load(path)
    assert (first.run.epoch, first.run.step) == (1, 5)
    first.fit(batches(), epochs=2)
    assert first.run.step == 10
    assert same_bits(wanted, first.engine.model)


def test_a_trainer_that_has_trained_does_not_start_from_scratch(tmp_path):
    run = made(tmp_path / "run")
    run.fit(batches(), epochs=1)
    with pytest.raises(ValueError, match="this trainer has trained: make a new one"):
        run.fit(batches(), epochs=2, resume="never")


def test_a_trial_after_loading_leaves_what_was_loaded(tmp_path):
    first = made(tmp_path / "one")
    first.fit(batches(), epochs=1)
    path = first.save(tmp_path / "by hand")
    second = made(tmp_path / "two")
    second.load(path)
    second.fit(batches(), epochs=2, fast_dev_run=True)
    second.fit(batches(), epochs=2)
    assert second.run.step == 10


def test_one_trainer_continues_within_an_epoch_as_two_processes_would(tmp_path):
    torch.manual_seed(0)
    whole = made(tmp_path / "whole", model=net(dropout=True))
    torch.manual_seed(1)
    whole.fit(loader(shuffle=True), max_steps=8)
    torch.manual_seed(0)
    parts = made(tmp_path / "parts", model=net(dropout=True))
    torch.manual_seed(1)
    data = loader(shuffle=True)
    parts.fit(data, max_steps=3)
    parts.fit(data, max_steps=8)
    assert same_bits(weights(whole.engine.model), parts.engine.model)
    assert parts.run.epoch == whole.run.epoch


def test_a_script_of_two_fits_resumes_in_the_second(tmp_path):
    def script(*more):
        run = made(tmp_path / "run", *more)
        run.fit(batches(), epochs=1)
        run.fit(batches(), epochs=3)
        return run

    with pytest.raises(Stop):
        script(stop_at(8))
    again = script()
    assert (again.run.step, again.run.epoch) == (15, 3)
    assert [row["epoch"] for row in again.history] == [1, 2, 3]


def test_a_metric_of_torchmetrics_covers_the_entire_epoch_of_a_resumed_run(tmp_path):
    from torchmetrics.classification import MulticlassF1Score

    def f1():
        return hooks.Metrics(f1=MulticlassF1Score(num_classes=3), on="train")

    whole = made(tmp_path / "whole", f1())
    whole.fit(batches(), epochs=1)
    with pytest.raises(Stop):
        made(tmp_path / "parts", f1(), stop_at(3)).fit(batches(), epochs=1)
    parts = made(tmp_path / "parts", f1())
    parts.fit(batches(), epochs=1)
    assert parts.history["train/f1"] == whole.history["train/f1"]


def test_two_checkpoint_hooks_are_refused(tmp_path):
    second = hooks.Checkpoint("1st", folder=tmp_path / "b")
    second.name = "second"
    with pytest.raises(ValueError, match="one Checkpoint hook, got 2: 'Checkpoint', 'second'"):
        made(tmp_path / "run", second).fit(batches(), epochs=1)


@pytest.mark.parametrize("point", ["after_val", "after_step"])
def test_a_save_may_be_requested_at_any_point(tmp_path, point):
    asks = hooks.Callback(**{point: lambda run: run.request("save")})
    made(tmp_path / "run", asks, every=None).fit(
        batches(), batches(4), epochs=2, validate_every="2st"
    )
    steps = {path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")}
    assert "step-00000002" in steps
    assert ("step-00000005" in steps) == (point == "after_step")


def test_another_optimizer_is_rejected_with_a_clear_error(tmp_path):
    made(tmp_path / "run").fit(batches(), epochs=1)
    model = net()
    other = Trainer(
        Engine(model, torch.optim.AdamW(model.parameters()), nn.CrossEntropyLoss()),
        [hooks.Checkpoint()],
        run_dir=tmp_path / "run",
    )
    with pytest.raises(CheckpointError, match="AdamW has other options or groups"):
        other.fit(batches(), epochs=2, resume="must")


def test_a_prediction_between_two_fits_leaves_the_place_in_the_data(tmp_path):
    run = made(tmp_path / "run")
    data = batches()
    run.fit(data, max_steps=3)
    run.predict(batches(4))
    run.fit(data, max_steps=5)
    assert (run.run.step, run.run.epoch) == (5, 1)


def test_a_link_that_a_user_made_to_a_checkpoint_is_followed(tmp_path):
    def fit(folder, epochs, resume="auto"):
        made = Trainer(engine(), [hooks.Checkpoint()], run_dir=folder)
        made.fit(batches(), epochs=epochs, resume=resume)
        return made

    link = tmp_path / "best"
    link.symlink_to(fit(tmp_path / "run", 1).run.dir / "checkpoints" / "step-00000005")
    assert fit(tmp_path / "other", 2, resume=link).run.step == 10
    assert not any(load_weights(net(), link).values())


class ScalesWhatItLoads(nn.Linear):
    def _load_from_state_dict(self, state, prefix, *rest):
        state[f"{prefix}weight"] = state[f"{prefix}weight"] * 2
        super()._load_from_state_dict(state, prefix, *rest)


def trained(folder, model):
    optimizer = torch.optim.Adam(model.parameters())
    trainer = Trainer(
        Engine(model, optimizer, nn.MSELoss()), [hooks.Checkpoint("1st")], run_dir=folder
    )
    data = [(torch.ones(2, 3), torch.ones(2, 4))] * 4
    return trainer, data


def test_weights_and_moments_are_read_into_the_memory_that_has_them(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    trainer, data = trained(tmp_path, model)
    trainer.fit(data, max_steps=2)
    saved = {name: one.clone() for name, one in model.state_dict().items()}
    moments = {id(p): s["exp_avg"] for p, s in trainer.engine.optimizer.state.items()}
    expected = {key: one.clone() for key, one in moments.items()}
    before = [one.data_ptr() for one in (*model.state_dict().values(), *moments.values())]
    with torch.no_grad():
        for one in (*model.parameters(), *moments.values()):
            one.zero_()
    trainer.load(tmp_path)
    state = trainer.engine.optimizer.state
    after = [*model.state_dict().values(), *(state[p]["exp_avg"] for p in model.parameters())]
    assert [one.data_ptr() for one in after] == before
    assert same_bits(model.state_dict(), saved)
    assert same_bits({id(p): s["exp_avg"] for p, s in state.items()}, expected)


def test_a_module_that_loads_in_its_own_way_gets_what_was_saved(tmp_path):
    model = nn.Sequential(ScalesWhatItLoads(3, 4), nn.Linear(4, 4))
    trainer, data = trained(tmp_path, model)
    trainer.fit(data, max_steps=1)
    saved = {name: one.clone() for name, one in model.state_dict().items()}
    trainer.load(tmp_path)
    assert same_bits(model.state_dict(), saved | {"0.weight": saved["0.weight"] * 2})


def test_a_checkpoint_that_does_not_fit_leaves_the_model_untouched(tmp_path):
    trainer, data = trained(tmp_path, nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4)))
    trainer.fit(data, max_steps=1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4, bias=False))
    before = {name: one.clone() for name, one in model.state_dict().items()}
    other, _ = trained(tmp_path / "other", model)
    with pytest.raises(CheckpointError, match=r"unexpected: 1\.bias"):
        other.load(tmp_path)
    assert same_bits(model.state_dict(), before)
