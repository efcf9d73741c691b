"""Rows of the acceptance list about checkpoints and resume, in Stoker's own words."""

import logging
import math
import os
import pickle
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from stoker import CheckpointError, Engine, Trainer, hooks, load_weights
from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.manifest import Manifest
from stoker.cli import main
from stoker.core.every import Every
from stoker.hooks import Callback
from stoker.nn import lr
from support.checkpoint_states import KILLED, in_child
from support.killable_run import same
from support.toys import batches, loader, net, same_bits, trainer, weights

PER_EPOCH = 5  # steps, in what toys.batches() and toys.loader() give


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """As in the processes that tests kill: the number of threads shows in the last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def kept(run_dir):
    """The steps of the checkpoints in a run folder."""
    return [Manifest.read(path).step for path in Checkpoints(run_dir / "checkpoints").list()]


def at(run_dir, step):
    return run_dir / "checkpoints" / f"step-{step:08d}"


def train(run_dir, *more, every="1ep", keep=None, best=None, mode=None, accumulate=1, **how):
    """A run that saves itself, in toy batches or in those of ``how``."""
    saving = hooks.Checkpoint(every, keep=keep, best=best, mode=mode)
    made = trainer(hooks.Loss(), saving, *more, accumulate=accumulate, run_dir=run_dir)
    data = how.pop("data", None) or batches()
    made.fit(data, how.pop("val", None), **how)
    return made


def lively(run_dir, *more, precision="fp32", every="3st", **how):
    """A run with everything that has a state: moments, schedule, norms, dropout, data order."""
    model = net(dropout=True, norm=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    rates = lr.cosine(optimizer, 20, warmup_steps=3)
    engine = Engine(
        model, optimizer, nn.CrossEntropyLoss(), lr_scheduler=rates, precision=precision
    )
    saving = hooks.Checkpoint(every, keep=None)
    made = Trainer(engine, [hooks.Loss(), saving, *more], run_dir=run_dir, seed=3)
    made.fit(loader(shuffle=True), **how)
    return made


def losses_into(found):
    return Callback(name="losses", after_step=lambda run: found.append(run.loss.item()))


def scores(*by_epoch):
    """Gives each epoch a result of validation."""
    return Callback(
        name="scores",
        priority=20,
        after_val=lambda run: run.record("val/score", by_epoch[run.step // PER_EPOCH - 1]),
    )


# When a run is saved, and under which name


@pytest.mark.row("C21")
def test_saves_after_every_second_completed_epoch_and_after_the_last(tmp_path):
    run_dir = tmp_path / "not" / "there" / "yet"
    train(run_dir, every="2ep", epochs=5)
    assert kept(run_dir) == [0, 10, 20, 25]  # 0: from its beginning on there is one to go on from
    epochs = [Manifest.read(at(run_dir, step)).info["epoch"] for step in (10, 20, 25)]
    assert epochs == [2, 4, 5]


@pytest.mark.row("C22")
def test_a_period_in_steps_saves_at_its_multiples_and_not_at_ends_of_epochs(tmp_path):
    train(tmp_path / "run", every="4st", epochs=3)
    assert kept(tmp_path / "run") == [0, 4, 8, 12, 15]  # 15: the end of the run


@pytest.mark.row("L10")
def test_a_checkpoint_is_named_by_its_step_and_the_end_is_the_newest(tmp_path):
    train(tmp_path / "run", every="3st", max_steps=7)
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    names = ["step-00000000", "step-00000003", "step-00000006", "step-00000007"]
    assert [path.name for path in checkpoints.list()] == names
    assert checkpoints.newest() == at(tmp_path / "run", 7)


@pytest.mark.row("O17")
def test_a_checkpoint_holds_the_weights_of_the_step_it_is_named_by(tmp_path):
    train(tmp_path / "run", every="3st", epochs=2)
    assert kept(tmp_path / "run") == [0, 3, 6, 9, 10]
    for step in (3, 6, 9, 10):
        plain = trainer()
        plain.fit(batches(), max_steps=step)
        assert same_bits(
            load_file(at(tmp_path / "run", step) / "model.safetensors"), plain.engine.model
        )


@pytest.mark.row("L20")
@pytest.mark.parametrize(("accumulate", "count"), [(1, 20), (4, 80)])
def test_periods_count_updates_with_and_without_accumulation(tmp_path, accumulate, count):
    validated = []
    seen = Callback(before_val=lambda run: validated.append(run.step))
    train(
        tmp_path / "run", seen, every="2st", accumulate=accumulate, data=batches(count),
        val=batches(4), epochs=1, validate_every="2st",
    )  # fmt: skip
    assert kept(tmp_path / "run") == [0, 2, 4, 5]
    assert validated == [2, 4, 5]


@pytest.mark.row("T15")
@pytest.mark.parametrize(("every", "steps"), [("2ep", [0, 10, 15]), ("4st", [0, 4, 8, 12, 15])])
def test_batches_of_validation_do_not_count_for_a_period(tmp_path, every, steps):
    train(tmp_path / "run", every=every, val=batches(12), validate_every="1st", epochs=3)
    assert kept(tmp_path / "run") == steps


@pytest.mark.row("T15")
def test_a_period_is_in_epochs_or_in_steps_and_not_both():
    with pytest.raises(ValueError, match="expected a period such as"):
        Every.of("2ep 3st")


@pytest.mark.row("T15")
def test_a_second_checkpoint_hook_is_refused_and_not_left_unused(tmp_path):
    second = hooks.Checkpoint("3st", folder=tmp_path / "second")
    second.name = "second"
    with pytest.raises(ValueError, match="Checkpoint"):
        train(tmp_path / "run", second, epochs=1)


@pytest.mark.row("T15")
def test_the_epoch_in_which_early_stopping_ends_a_run_is_saved(tmp_path):
    stopping = hooks.EarlyStopping("val/score", patience=2)
    train(tmp_path / "run", scores(3, 2, 1), stopping, every="10ep", val=batches(4), epochs=9)
    assert kept(tmp_path / "run") == [0, 15]
    assert Manifest.read(at(tmp_path / "run", 15)).info["epoch"] == 3


# What is kept


@pytest.mark.row("L11")
def test_keeping_two_counts_the_checkpoints_from_before_a_resume(tmp_path):
    train(tmp_path / "run", keep=2, epochs=2)
    assert kept(tmp_path / "run") == [5, 10]
    train(tmp_path / "run", keep=2, epochs=3)
    assert kept(tmp_path / "run") == [10, 15]


@pytest.mark.row("L11")
def test_neither_the_best_nor_the_last_is_ever_removed(tmp_path):
    how = {"keep": 1, "best": "val/score", "val": batches(4)}
    values = scores(1, 9, 2, 3, 4)
    train(tmp_path / "run", values, epochs=3, **how)
    assert kept(tmp_path / "run") == [10, 15]
    train(tmp_path / "run", values, epochs=5, **how)
    assert kept(tmp_path / "run") == [10, 25]


@pytest.mark.row("L12")
def test_only_a_strictly_better_result_takes_the_place_of_the_best(tmp_path):
    for mode, values in (("max", (1, 3, 3, 2)), ("min", (3, 1, 1, 2))):
        how = {"keep": 1, "best": "val/score", "mode": mode, "val": batches(4)}
        train(tmp_path / mode, scores(*values), epochs=4, **how)
        assert kept(tmp_path / mode) == [10, 20]


@pytest.mark.row("L12")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_result_that_is_no_finite_number_is_never_the_best(tmp_path, value):
    how = {"keep": 1, "best": "val/score", "val": batches(4)}
    train(tmp_path / "run", scores(3, value, 2), epochs=3, **how)
    assert kept(tmp_path / "run") == [5, 15]


@pytest.mark.row("L12")
def test_the_best_before_a_resume_is_kept_and_is_not_what_is_resumed(tmp_path):
    how = {"keep": 1, "best": "val/score", "val": batches(4)}
    train(tmp_path / "run", scores(9, 1, 2, 3), epochs=2, **how)
    train(tmp_path / "run", scores(9, 1, 2, 3), epochs=4, **how)
    assert kept(tmp_path / "run") == [5, 20]
    assert Checkpoints(tmp_path / "run" / "checkpoints").newest() == at(tmp_path / "run", 20)


@pytest.mark.row("L12")
def test_an_improvement_is_saved_between_two_periods(tmp_path):
    how = {"every": "4ep", "best": "val/score", "val": batches(4)}
    train(tmp_path / "run", scores(1, 9, 2, 3), epochs=4, **how)
    assert 10 in kept(tmp_path / "run")


@pytest.mark.row("L12")
def test_the_best_value_of_early_stopping_is_not_forgotten(tmp_path):
    train(tmp_path / "run", scores(9, 1), hooks.EarlyStopping("val/score", patience=3),
          val=batches(4), epochs=2)  # fmt: skip
    stopping = hooks.EarlyStopping("val/score", patience=3)
    made = train(tmp_path / "run", scores(9, 1, 2, 3, 4), stopping, val=batches(4), epochs=9)
    assert stopping.monitor.best == 9
    assert made.run.epoch == 4


# What is in a checkpoint


@pytest.mark.row("O20")
def test_a_state_has_counters_model_optimizer_and_scheduler_and_all_come_back(tmp_path):
    first = lively(tmp_path / "run", epochs=2)
    shared = Checkpoints(tmp_path / "run" / "checkpoints").load(at(tmp_path / "run", 10)).shared
    assert (shared["run"]["epoch"], shared["run"]["step"], shared["run"]["samples"]) == (2, 10, 40)
    assert shared["engine"]["optimizers"]
    assert shared["engine"]["lr_schedulers"]
    again = lively(tmp_path / "run", epochs=2)
    assert same(first.engine.state_dict(), again.engine.state_dict())
    assert (again.run.epoch, again.run.step, again.run.samples) == (2, 10, 40)


@pytest.mark.row("O20")
def test_the_place_within_an_epoch_comes_back_in_batches(tmp_path):
    train(tmp_path / "run", accumulate=2, max_steps=2, data=loader())
    seen = []
    spy = Callback(after_step=lambda run: seen.extend(run.batches))
    train(tmp_path / "run", spy, accumulate=2, epochs=1, data=loader())
    assert len(seen) == 1  # four of the five batches were seen before
    assert seen[0][0].equal(batches()[4][0])


@pytest.mark.row("O20")
def test_a_file_of_weights_holds_no_optimizer(tmp_path):
    made = lively(tmp_path / "run", hooks.SaveWeights(), epochs=1)
    names = set(made.engine.model.state_dict())
    for file in (tmp_path / "run", at(tmp_path / "run", 5)):
        assert set(load_file(file / "model.safetensors")) == names


@pytest.mark.row("T08")
def test_weights_of_a_checkpoint_load_strictly_into_a_bare_model(tmp_path):
    made = train(tmp_path / "a" / "b" / "run", epochs=2)
    model = net(seed=1)
    model.load_state_dict(load_file(at(tmp_path / "a" / "b" / "run", 10) / "model.safetensors"))
    assert same_bits(model, made.engine.model)


@pytest.mark.row("T08")
def test_a_checkpoint_describes_its_layers_settings_and_last_results(tmp_path, capsys):
    made = train(tmp_path / "run", val=batches(8), epochs=2)
    assert main(["ckpt", "show", str(at(tmp_path / "run", 10))]) == 0
    said = capsys.readouterr().out
    for part in ("step 10", "epoch 2", "SGD", "CrossEntropyLoss", "[8, 4]"):
        assert part in said
    for name in ("train/loss", "val/loss"):
        assert name in said
        assert f"{made.run.metrics[name]:.6g}" in said


# Going on


@pytest.mark.row("Z04")
def test_a_run_resumes_from_a_prepared_checkpoint(tmp_path):
    train(tmp_path / "first", every="5ep", epochs=20)
    whole = train(tmp_path / "whole", every="5ep", epochs=25)
    made = train(tmp_path / "run", every="5ep", epochs=25, resume=at(tmp_path / "first", 100))
    assert kept(tmp_path / "run") == [125]
    assert same_bits(made.engine.model, whole.engine.model)


@pytest.mark.row("Z04")
def test_a_missing_checkpoint_to_resume_from_is_named(tmp_path):
    path = at(tmp_path / "first", 100)
    with pytest.raises(CheckpointError, match=str(path)):
        train(tmp_path / "run", epochs=1, resume=path)
    assert not (tmp_path / "run").exists()


@pytest.mark.row("Z05")
def test_the_folder_of_a_run_means_its_newest_checkpoint(tmp_path):
    train(tmp_path / "first", epochs=3)
    steps = []
    seen = Callback(after_step=lambda run: steps.append(run.step))
    train(tmp_path / "run", seen, epochs=4, resume=tmp_path / "first")
    assert steps == [16, 17, 18, 19, 20]


@pytest.mark.row("Z05")
def test_finetuning_loads_weights_alone_and_begins_at_epoch_0(tmp_path):
    first = lively(tmp_path / "first", epochs=2)
    made = trainer(model=net(dropout=True, norm=True, seed=1))
    assert not any(load_weights(made.engine.model, tmp_path / "first").values())
    assert same_bits(made.engine.model, first.engine.model)
    assert (made.run.epoch, made.run.step) == (0, 0)
    assert not made.engine.optimizers[""].state
    made.fit(batches(), epochs=1)
    assert (made.run.epoch, made.run.step) == (1, 5)


@pytest.mark.row("L16")
def test_missing_unexpected_and_misshapen_weights_are_three_groups(tmp_path, caplog):
    class Two(nn.Module):
        def __init__(self, width, name):
            super().__init__()
            self.same = nn.Linear(2, 2)
            self.wide = nn.Linear(2, width, bias=False)
            self.add_module(name, nn.Linear(1, 1, bias=False))

    old, new = Two(3, "old"), Two(4, "new")
    made = Trainer(Engine(old, torch.optim.SGD(old.parameters(), lr=0.1)), [])
    wide = new.wide.weight.clone()
    with caplog.at_level(logging.WARNING):
        faults = load_weights(new, made.save(tmp_path / "run"))
    assert faults == {
        "missing": ["new.weight"],
        "unexpected": ["old.weight"],
        "of another shape": ["wide.weight [3, 2] instead of [4, 2]"],
    }
    assert same_bits(new.same, old.same)
    assert new.wide.weight.equal(wide)


@pytest.mark.row("Z06")
def test_after_a_completed_epoch_the_next_one_follows(tmp_path):
    seen, whole_seen = [], []
    into = {True: seen, False: whole_seen}

    def spy(of_parts):
        return Callback(after_step=lambda run: into[of_parts].extend(run.batches))

    whole = lively(tmp_path / "whole", spy(False), every="1ep", epochs=4)
    for epochs in (1, 3, 4):
        made = lively(tmp_path / "run", spy(True), every="1ep", epochs=epochs)
    assert len(seen) == len(whole_seen) == 20
    assert same(seen, whole_seen)
    assert same(made.engine.state_dict()["model"], whole.engine.state_dict()["model"])


@pytest.mark.row("T09")
def test_resume_at_the_end_of_epoch_1_trains_only_epoch_2(tmp_path):
    whole = lively(tmp_path / "whole", every="1ep", epochs=2)
    steps = []
    seen = Callback(after_step=lambda run: steps.append(run.step))
    path = at(tmp_path / "whole", 5)
    made = lively(tmp_path / "run", seen, every="1ep", epochs=2, resume=path)
    assert steps == [6, 7, 8, 9, 10]
    assert made.run.epoch == 2
    assert same(made.engine.state_dict(), whole.engine.state_dict())  # moments and rates, too


@pytest.mark.process
@pytest.mark.row("L13")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_losses_after_a_kill_are_those_of_the_undisturbed_run(tmp_path, precision):
    def killed_in_step_9(run):
        if run.step == 8:
            os.kill(os.getpid(), signal.SIGKILL)

    whole, rest = [], []
    uninterrupted = lively(tmp_path / "whole", losses_into(whole), precision=precision, epochs=4)
    bomb = Callback(name="bomb", before_update=killed_in_step_9)
    doomed = partial(lively, tmp_path / "run", bomb, precision=precision, epochs=4)
    assert in_child(doomed) == KILLED
    made = lively(tmp_path / "run", losses_into(rest), precision=precision, epochs=4)
    assert len(rest) <= len(whole) - 3  # from step 6, or from 3 if the save of 6 was under way
    assert rest == whole[-len(rest) :]
    assert same(made.engine.state_dict(), uninterrupted.engine.state_dict())


@pytest.mark.slow
@pytest.mark.row("L15")
def test_a_finished_run_continues_if_given_more_and_otherwise_reports_that_it_is_done(
    tmp_path, caplog
):
    lively(tmp_path / "run", max_steps=8)
    with caplog.at_level(logging.INFO):
        again = lively(tmp_path / "run", max_steps=8)
    assert "nothing left to do: step 8" in caplog.text
    assert again.run.step == 8
    more = lively(tmp_path / "run", max_steps=12)
    assert more.run.step == 12
    assert same_bits(more.engine.model, lively(tmp_path / "whole", max_steps=12).engine.model)


@pytest.mark.row("L15")
def test_a_run_that_stopped_early_continues_if_given_more_epochs(tmp_path):
    def stopping():
        return hooks.EarlyStopping("val/score", patience=2)

    how = {"val": batches(4)}
    values = scores(3, 2, 1, 4, 5, 6)
    assert train(tmp_path / "run", values, stopping(), epochs=5, **how).run.epoch == 3
    assert train(tmp_path / "run", values, stopping(), epochs=5, **how).run.epoch == 3
    assert train(tmp_path / "run", values, stopping(), epochs=6, **how).run.epoch == 6


@pytest.mark.row("O11")
def test_max_steps_ends_at_exactly_so_many_updates_also_after_a_resume(tmp_path):
    assert train(tmp_path / "run", epochs=9, max_steps=7).run.step == 7
    steps = []
    seen = Callback(after_step=lambda run: steps.append(run.step))
    train(tmp_path / "run", seen, epochs=9, max_steps=11)
    assert steps == [8, 9, 10, 11]


@pytest.mark.row("O11")
def test_whichever_of_epochs_and_max_steps_comes_first_ends_a_run():
    made = trainer()
    made.fit(batches(), epochs=1, max_steps=7)
    assert made.run.step == 5
    made.fit(batches(), epochs=9, max_steps=7)
    assert made.run.step == 7


# Saving and loading by hand


@pytest.mark.row("T10")
def test_load_takes_up_weights_and_epoch_of_what_save_wrote(tmp_path):
    first = trainer()
    first.fit(batches(), epochs=2)
    path = first.save(tmp_path / "by hand")
    second = trainer(model=net(seed=1))
    second.load(path)
    assert same_bits(second.engine.model, first.engine.model)
    second.fit(batches(), epochs=3)
    first.fit(batches(), epochs=3)
    assert (second.run.epoch, second.run.step) == (3, 15)
    assert same_bits(second.engine.model, first.engine.model)


@pytest.mark.row("T10")
def test_a_trainer_is_at_the_epoch_of_what_it_loaded(tmp_path):
    first = trainer()
    first.fit(batches(), epochs=2)
    second = trainer()
    second.load(first.save(tmp_path / "by hand"))
    assert (second.run.epoch, second.run.step) == (2, 10)
    assert second.save(tmp_path / "again").name == "step-00000010"


@pytest.mark.row("T10")
def test_a_trainer_that_trained_goes_back_to_what_it_loads(tmp_path):
    made = trainer()
    made.fit(batches(), epochs=1)
    path = made.save(tmp_path / "by hand")
    made.fit(batches(), epochs=2)
    expected = weights(made.engine.model)
    made.fit(batches(), epochs=3)
    made.load(path)
    made.fit(batches(), epochs=2)
    assert (made.run.epoch, made.run.step) == (2, 10)
    assert same_bits(made.engine.model, expected)


@pytest.mark.row("T10")
def test_save_without_overwrite_leaves_what_is_there(tmp_path):
    made = trainer()
    path = made.save(tmp_path / "by hand")
    before = (path / "MANIFEST.json").stat()
    with pytest.raises(FileExistsError, match="step-00000000"):
        made.save(tmp_path / "by hand", overwrite=False)
    assert (path / "MANIFEST.json").stat() == before


# What goes wrong


@pytest.mark.row("O18")
@pytest.mark.parametrize("harm", ["unfinished", "cut", "lost"])
def test_the_newest_valid_checkpoint_is_found_whatever_a_crash_left(tmp_path, harm):
    train(tmp_path / "run", epochs=3)
    newest = at(tmp_path / "run", 15)
    if harm == "unfinished":
        newest.rename(newest.with_name(".step-00000015.partial-1"))
    elif harm == "cut":
        os.truncate(newest / "state.json", 10)
    else:
        (newest / "MANIFEST.json").unlink()
    assert Checkpoints(tmp_path / "run" / "checkpoints").newest() == at(tmp_path / "run", 10)
    steps = []
    seen = Callback(after_step=lambda run: steps.append(run.step))
    train(tmp_path / "run", seen, epochs=3, resume="must")
    assert steps == [11, 12, 13, 14, 15]


@pytest.mark.row("O19")
def test_a_new_run_leaves_a_folder_with_checkpoints_alone(tmp_path):
    train(tmp_path / "run", epochs=2)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*") if p.is_file()}
    made = train(tmp_path / "run", epochs=1, resume="never")
    assert made.run.dir == tmp_path / "run-2"
    assert kept(tmp_path / "run-2") == [0, 5]
    assert before == {p: p.stat().st_mtime_ns for p in before}


@pytest.mark.row("O19")
def test_a_new_run_is_refused_a_checkpoint_folder_of_another(tmp_path):
    def fit(epochs, resume):
        made = trainer(hooks.Checkpoint("1ep", folder=tmp_path / "checkpoints"))
        made.fit(batches(), epochs=epochs, resume=resume)
        return made

    fit(2, "auto")
    assert fit(3, "auto").run.step == 15
    with pytest.raises((CheckpointError, ValueError), match=str(tmp_path / "checkpoints")):
        fit(1, "never")
    assert kept(tmp_path) == [5, 10, 15]


@pytest.mark.process
@pytest.mark.row("X01")
@pytest.mark.parametrize(
    "point", ["partial-made", "before-manifest", "before-rename", "renamed", "before-removal"]
)
def test_a_kill_during_a_save_leaves_a_valid_checkpoint_to_resume_from(tmp_path, point):
    doomed = partial(train, tmp_path / "run", keep=1, epochs=4)
    assert in_child(doomed, STOKER_KILL_AT=f"{point}:3") == KILLED
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    newest = checkpoints.newest()
    assert newest in [at(tmp_path / "run", step) for step in (5, 10, 15)]
    assert checkpoints.load(newest).shared["run"]["step"] == Manifest.read(newest).step
    made = train(tmp_path / "run", keep=1, epochs=4, resume="must")
    assert same_bits(made.engine.model, train(tmp_path / "whole", epochs=4).engine.model)
    assert [path.name for path in checkpoints.folder.glob("*step*")] == ["step-00000020"]


def refuse_pickles():
    def refuse(event, arguments):
        if event == "pickle.find_class":
            raise RuntimeError(f"a pickle asks for {arguments}")

    sys.addaudithook(refuse)


@pytest.mark.process
@pytest.mark.row("X06")
def test_nothing_is_unpickled_to_resume(tmp_path):
    def goes_on():
        refuse_pickles()
        assert lively(tmp_path / "run", epochs=3).run.step == 15
        load_weights(net(dropout=True, norm=True), tmp_path / "run")

    def unpickles():
        refuse_pickles()
        try:
            pickle.loads(pickle.dumps(Path()))
        except RuntimeError:
            os._exit(7)

    lively(tmp_path / "run", epochs=2)
    assert in_child(unpickles) == 7  # this is how one would be noticed
    assert in_child(goes_on) == 0
    files = list(at(tmp_path / "run", 15).iterdir())
    assert {path.suffix for path in files} == {".json", ".safetensors"}


@pytest.mark.row("X06")
def test_weights_in_a_pickle_are_refused_with_a_clear_error(tmp_path):
    torch.save(net().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match="stoker ckpt import"):
        load_weights(net(), tmp_path / "weights.pt")


@pytest.mark.row("X06")
def test_a_checkpoint_that_was_moved_resumes_the_same(tmp_path):
    lively(tmp_path / "run", epochs=1)
    shutil.copytree(at(tmp_path / "run", 5), tmp_path / "elsewhere" / "step-00000005")
    made = lively(tmp_path / "new", epochs=2, resume=tmp_path / "elsewhere")
    assert same_bits(made.engine.model, lively(tmp_path / "run", epochs=2).engine.model)
