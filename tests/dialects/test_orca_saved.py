"""What an Orca estimator leaves on the disk, and how it goes on from there."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stoker.core.errors import CheckpointError
from stoker.dialects.orca import OrcaContext, init_orca_context, stop_orca_context
from stoker.dialects.orca.learn.pytorch import Estimator
from stoker.dialects.orca.learn.pytorch.callbacks import Callback
from stoker.dialects.orca.learn.pytorch.callbacks.maxsteps import MaxstepsCallback
from stoker.dialects.orca.learn.pytorch.callbacks.model_checkpoint import ModelCheckpoint
from stoker.dialects.orca.learn.pytorch.callbacks.tensorboard import TensorBoardCallback
from stoker.dialects.orca.learn.pytorch.callbacks.tqdm import TqdmCallback
from stoker.dialects.orca.learn.pytorch.callbacks.wandb import WandbLoggerCallback
from support.killable_run import differences
from support.tasks import orca as tasks
from support.toys import same_bits, weights

FOUR = {"batch_size": 25}  # batches an epoch


def names(folder):
    return sorted(path.name for path in folder.glob("*.ckpt"))


@pytest.mark.row("O17")
def test_checkpoints_have_the_names_of_the_template(tmp_path):
    by_epoch = ModelCheckpoint(tmp_path / "a" / "net-{epoch:02d}-{iter}")
    tasks.estimator().fit(tasks.train, 2, callbacks=[by_epoch], **FOUR)
    expected = ["last.ckpt", "net-epoch=01-iter=4.ckpt", "net-epoch=02-iter=8.ckpt"]
    assert names(tmp_path / "a") == expected
    by_step = ModelCheckpoint(f"{tmp_path}/b/", by_epoch=False, interval=3)
    tasks.estimator().fit(tasks.train, 2, callbacks=[by_step], **FOUR)
    assert names(tmp_path / "b") == ["iter=3.ckpt", "iter=6.ckpt", "last.ckpt"]
    never = ModelCheckpoint(f"{tmp_path}/c/{{iter}}", by_epoch=False)
    estimator = tasks.estimator()
    estimator.fit(tasks.train, 1, callbacks=[never], **FOUR)
    assert names(tmp_path / "c") == ["last.ckpt"]
    other = tasks.estimator(config={"seed": 1})
    other.load(tmp_path / "c" / "last.ckpt")
    assert same_bits(other.get_model(), estimator.get_model())
    with pytest.raises(ValueError, match="did you mean 'epoch'"):
        ModelCheckpoint("x/{epochs}")


@pytest.mark.row("O18")
def test_the_latest_is_found_although_the_run_failed_before_it_named_one(tmp_path):
    class Fails(Callback):
        def before_train_iter(self, runner):
            if runner.global_step == 6:
                raise RuntimeError("the machine is gone")

    saved = ModelCheckpoint(f"{tmp_path}/{{iter}}", by_epoch=False, interval=2)
    with pytest.raises(RuntimeError, match="is gone") as caught:
        tasks.estimator().fit(tasks.train, 2, callbacks=[saved, Fails()], **FOUR)
    assert any("'Fails' in before_step" in note for note in caught.value.__notes__)
    assert Estimator.latest_checkpoint(tmp_path) == str(tmp_path / "last.ckpt")
    for name in tmp_path.glob("*.ckpt"):
        name.unlink()  # a run that was killed has not named its checkpoints
    latest = Path(Estimator.latest_checkpoint(tmp_path))
    assert latest.is_file()
    assert latest.parent.name == "step-00000006"
    again = tasks.estimator(config={"seed": 1})
    again.load_checkpoint(str(latest))
    assert again.get_state_dict()["global_step"] == 6
    with pytest.raises(RuntimeError, match="there is no checkpoint in"):
        Estimator.latest_checkpoint(tmp_path / "nowhere")


@pytest.mark.row("O19")
def test_a_folder_of_something_else_is_refused_and_the_runs_own_is_resumed(tmp_path):
    (tmp_path / "epoch=1.ckpt").write_text("from elsewhere")
    with pytest.raises(CheckpointError, match="holds epoch=1.ckpt, which is not of this run"):
        tasks.estimator().fit(tasks.train, callbacks=[ModelCheckpoint(f"{tmp_path}/")])
    (tmp_path / "epoch=1.ckpt").unlink()
    for epochs in (1, 2):
        estimator = tasks.estimator()
        rows = estimator.fit(tasks.train, epochs, callbacks=[ModelCheckpoint(f"{tmp_path}/")])
        assert len(rows) == epochs
    assert estimator.get_state_dict()["epoch"] == 2


@pytest.mark.row("O20")
def test_the_state_has_counters_and_is_restored_and_weights_alone_are_weights(tmp_path):
    estimator = tasks.estimator(scheduler_creator=tasks.scheduler)
    saved = ModelCheckpoint(f"{tmp_path}/w/", save_weights_only=True)
    estimator.fit(tasks.train, 2, callbacks=[saved], **FOUR)
    state = estimator.get_state_dict()
    assert [state[name] for name in ("epoch", "iteration", "global_step")] == [2, 8, 8]
    assert state["optimizers"][0]["state"]
    assert state["schedulers"][0]["last_epoch"] == 2
    estimator.save_checkpoint(tmp_path / "all")
    other = tasks.estimator(scheduler_creator=tasks.scheduler)
    other.load_checkpoint(tmp_path / "all")
    found = other.get_state_dict()
    assert found["epoch"] == 2
    assert found["schedulers"] == state["schedulers"]
    momentum = [
        s["state"][0]["momentum_buffer"] for s in (*found["optimizers"], *state["optimizers"])
    ]
    assert momentum[0].equal(momentum[1])
    (row,) = other.fit(tasks.train, **FOUR)
    assert row["epoch"] == 3
    alone = tasks.estimator(config={"seed": 4})
    alone.load(tmp_path / "w" / "epoch=2.ckpt")
    assert same_bits(alone.get_model(), estimator.get_model())
    assert alone.get_state_dict()["optimizers"][0]["state"] == {}
    path = estimator.save(tmp_path / "weights.safetensors")
    alone.load(path)
    assert same_bits(alone.get_model(), estimator.get_model())
    with pytest.raises(CheckpointError, match="there is no"):
        alone.load(tmp_path / "nowhere")


def states_of_orca(estimator):
    """The layouts that Orca's runner writes and reads."""
    state = estimator.get_state_dict()
    (weights,) = state["models"]
    names = ("epoch", "models", "optimizers", "schedulers")
    return {
        "save_checkpoint": {name: state[name] for name in names},
        "weights only": {"epoch": state["epoch"], "models": [weights]},
        "of models": [weights],
    }


@pytest.mark.parametrize(
    ("layout", "is_zip"), [("save_checkpoint", True), ("save_checkpoint", False),
                           ("weights only", True), ("of models", True)],
)  # fmt: skip
def test_a_file_in_the_layout_of_orca_is_loaded(tmp_path, layout, is_zip):
    estimator = tasks.estimator(scheduler_creator=tasks.scheduler)
    estimator.fit(tasks.train, 2, **FOUR)
    written = states_of_orca(estimator)[layout]
    torch.save(written, tmp_path / "m.pth", _use_new_zipfile_serialization=is_zip)
    other = tasks.estimator(config={"seed": 4}, scheduler_creator=tasks.scheduler)
    other.load_checkpoint(str(tmp_path / "m.pth"))
    assert same_bits(other.get_model(), estimator.get_model())
    if "optimizers" in written:
        found = states_of_orca(other)[layout]
        assert differences(found, written) == []
    (row,) = other.fit(tasks.train, **FOUR)
    assert row["epoch"] == (3 if "epoch" in written else 1)


def test_a_file_that_is_no_state_of_one_model_is_refused(tmp_path):
    estimator = tasks.estimator()
    weights = estimator.get_model().state_dict()
    for value, words in (
        ({"epoch": 1, "models": [weights, weights]}, "the state has 2 as 'models', expected"),
        ({"models": [weights], "optimizers": [{}, {}]}, "the state has 2 as 'optimizers'"),
        ({"models": 3}, "the state has int as 'models', expected a list"),
        (Path("x"), "holds pathlib.*which is no model class"),
        (3, "holds a int, expected a state with 'models'"),
    ):
        torch.save(value, tmp_path / "m.pth")
        with pytest.raises(CheckpointError, match=words):
            estimator.load(tmp_path / "m.pth")
    (tmp_path / "m.pth").write_text("words")
    with pytest.raises(CheckpointError, match="no file of tensors and plain values"):
        estimator.load(tmp_path / "m.pth")


def test_the_stats_of_each_worker_are_complete_after_a_run_was_cut_off(tmp_path):
    class Fails(Callback):
        def before_train_iter(self, runner):
            if runner.global_step == 6:
                raise RuntimeError("the machine is gone")

    def rows(folder, *more):
        saved = ModelCheckpoint(f"{tmp_path}/{folder}/{{iter}}", by_epoch=False, interval=3)
        given = {"validation_data": tasks.val, "reduce_results": False, **FOUR}
        return tasks.estimator().fit(tasks.train, 3, callbacks=[saved, *more], **given)

    whole = rows("whole")
    with pytest.raises(RuntimeError, match="is gone"):
        rows("cut", Fails())
    assert [row["epoch"] for (row,) in whole] == [1, 2, 3]
    assert rows("cut") == whole


def test_two_fits_are_one_long_one():
    torch.manual_seed(1)
    parts = tasks.estimator()
    parts.fit(tasks.train, 1, **FOUR)
    assert parts.evaluate(tasks.val)["val_num_samples"] == 50
    rows = parts.fit(tasks.train, 2, **FOUR)
    assert [row["epoch"] for row in rows] == [2, 3]
    torch.manual_seed(1)
    whole = tasks.estimator()
    whole.fit(tasks.train, 3, **FOUR)
    assert same_bits(parts.get_model(), whole.get_model())
    before = weights(parts.get_model())
    parts.shutdown()
    assert not same_bits(parts.get_model(), before)


def test_weights_loaded_after_a_fit_begin_a_training_of_their_own(tmp_path):
    estimator = tasks.estimator(model_dir=tmp_path / "run")
    estimator.save(tmp_path / "start.safetensors")
    torch.manual_seed(0)
    first = estimator.fit(tasks.train, **FOUR)
    estimator.load(tmp_path / "start.safetensors")
    (row,) = estimator.fit(tasks.train, **FOUR)
    assert row["epoch"] == 1
    assert row["batch_count"] == first[0]["batch_count"]


SCRIPT = """
import os, signal, sys, json, torch
sys.path.insert(0, {tests!r})
from support.tasks import orca as tasks
from stoker.dialects.orca.learn.pytorch.callbacks import Callback

class Counts(Callback):
    def __init__(self):
        self.total = 0.0

    def after_train_iter(self, runner):
        self.total += float(runner.loss)
        runner.update("seen", runner.global_step)
        if runner.global_step == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

    def state_dict(self):
        return {{"total": self.total}}

    def load_state_dict(self, state):
        self.total = state["total"]

torch.manual_seed(11)
estimator = tasks.estimator(model_dir=sys.argv[1], scheduler_creator=tasks.scheduler)
counts = Counts()
fit = dict(batch_size=25, validation_data=tasks.val, callbacks=[counts])
rows = estimator.fit(tasks.train, 2, **fit) + estimator.fit(tasks.train, 1, **fit)
total = [float(p.detach().double().sum()) for p in estimator.get_model().parameters()]
print(json.dumps([rows, total, counts.total], default=float))
"""


@pytest.mark.slow
def test_a_run_that_is_killed_and_started_again_ends_at_the_same_bits(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent.parent)))

    def run(folder, at):
        command = [sys.executable, str(script), str(tmp_path / folder), str(at)]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)

    whole = run("whole", 0)
    assert whole.returncode == 0, whole.stderr
    assert run("killed", 6).returncode == -signal.SIGKILL
    assert run("killed", 11).returncode == -signal.SIGKILL
    again = run("killed", 0)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)[1:] == json.loads(whole.stdout)[1:]
    assert json.loads(again.stdout)[0][-1] == json.loads(whole.stdout)[0][-1]


UNMODIFIED = """
from bigdl.orca import init_orca_context, stop_orca_context
from bigdl.orca.learn.pytorch import Estimator
from bigdl.orca.learn.pytorch.callbacks import Callback, MainCallback
from bigdl.orca.learn.pytorch.callbacks.base import Callback as Base
from bigdl.orca.learn.pytorch.callbacks.model_checkpoint import ModelCheckpoint
from support.tasks import orca as tasks

assert Base is Callback
estimator = Estimator.from_torch(
    model=tasks.model, optimizer=tasks.optimizer, loss=tasks.nn.CrossEntropyLoss(), backend="local"
)
print(estimator.fit(data=tasks.train, epochs=1, callbacks=[MainCallback()])[0]["num_samples"])
"""


@pytest.mark.slow
def test_a_script_with_the_old_names_runs_unmodified(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(UNMODIFIED)
    finder = "from stoker.dialects.aliases import Dialects; Dialects().install()"
    run = f"import runpy, sys; {finder}; runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [sys.executable, "-c", run, str(script)]
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parent.parent), *sys.path]))
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "100\n"


@pytest.mark.row("O23")
def test_tensorboard_has_one_writer_and_its_x_values_never_decrease(tmp_path):
    callback = TensorBoardCallback(tmp_path, freq="batch")
    tasks.estimator().fit(tasks.train, 2, validation_data=tasks.val, callbacks=[callback], **FOUR)
    (file,) = tmp_path.iterdir()
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    steps = [e.step for e in EventFileLoader(str(file)).Load() if e.HasField("summary")]
    assert steps == sorted(steps)
    assert steps[-1] == 8
    with pytest.raises(ValueError, match="'epoch', 'batch' or a number"):
        TensorBoardCallback(tmp_path, freq="iter")


def test_the_callbacks_that_come_with_it(caplog, monkeypatch):
    caplog.set_level("INFO")
    said = []

    class Wandb:
        def init(self, **given):
            said.append(given)
            return self

        def watch(self, model):
            said.append("watch")

        def log(self, row, step):
            said.append((row["epoch"], step))

        def finish(self):
            said.append("finish")

    monkeypatch.setitem(sys.modules, "wandb", Wandb())
    wandb = WandbLoggerCallback("digits", log_config=True, watch_model=True, name="one")
    estimator = tasks.estimator(use_tqdm=True)
    estimator.fit(tasks.train, 9, callbacks=[MaxstepsCallback(6), TqdmCallback(), wandb], **FOUR)
    assert estimator.get_state_dict()["global_step"] == 6
    assert said == [
        {"project": "digits", "config": {"lr": 0.1}, "name": "one"},
        "watch",
        (1, 4),
        (2, 6),
        "finish",
    ]
    assert "Finished training epoch 1, stats averaged over workers: {'epoch': 1," in caplog.text


def test_every_n_counts_finished_ones():
    class Every(Callback):
        def __init__(self):
            self.found = []

        def after_train_iter(self, runner):
            if self.every_n_iter(runner, 3):
                self.found.append(runner.global_step)

        def after_train_epoch(self, runner):
            if self.every_n_epoch(runner, 2) and not self.every_n_iter(runner, -1):
                self.found.append(f"epoch {runner.epochs}")

    every = Every()
    tasks.estimator().fit(tasks.train, 2, callbacks=[every], **FOUR)
    assert every.found == [3, 6, "epoch 2"]


def test_a_context_without_pyspark_is_empty(monkeypatch):
    from stoker.dialects.orca import common

    monkeypatch.setattr(common, "find_spec", lambda name: None)
    assert init_orca_context("local", cores=2, memory="1g") is None
    assert init_orca_context() is None  # the open one
    started = []
    monkeypatch.setattr(common, "_start_ray", lambda *of: started.append(of))
    init_orca_context(runtime="ray", cores=2, address="head:6379")  # next to it
    assert (started, OrcaContext.runtime) == ([(2, "head:6379")], "ray")
    with pytest.raises(RuntimeError, match="no Spark session"):
        OrcaContext.get_spark_context()
    stop_orca_context()
    with pytest.raises(ImportError, match="pip install"):
        init_orca_context("yarn-client")
    with pytest.raises(ValueError, match="did you mean 'spark'"):
        init_orca_context(runtime="sparc")
    with pytest.raises(ValueError, match="about Spark"):
        init_orca_context(runtime="ray", conf={})
    with pytest.raises(ValueError, match="driver_cores is about Spark"):
        init_orca_context(runtime="ray", driver_cores=2)
    with pytest.raises(TypeError, match="no option; did you mean 'driver_memory'"):
        init_orca_context("local", driver_memori="2g")
    with pytest.raises(AttributeError, match="did you mean 'log_output'"):
        OrcaContext.log_outputs = True
