"""What Orca's estimator trains on: batches, columns, and callbacks and files around them."""

import json
import pickle
import sys
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, WeightedRandomSampler

from stoker.core.errors import CheckpointError
from stoker.dialects.orca import OrcaContext, shards
from stoker.dialects.orca.learn.pytorch import Estimator
from stoker.dialects.orca.learn.pytorch.callbacks import Callback, MainCallback
from stoker.dialects.orca.loaders import shuffled
from stoker.dialects.orca.worker import Job, Parts, work
from support.tasks import orca as tasks
from support.toys import same_bits


class Pair(nn.Module):
    """Takes one input that is a list, a dict, or several."""

    def __init__(self, form):
        super().__init__()
        self.form, self.net = form, nn.Linear(2, 1)

    def forward(self, *inputs):
        if self.form == "several":
            a, b = inputs
        else:
            (given,) = inputs
            a, b = given if self.form == "list" else (given["a"], given["b"])
        return self.net(torch.stack([a, b], 1))


@pytest.mark.parametrize("form", ["list", "dict", "several"])
def test_each_part_of_a_batch_before_the_target_is_one_argument(form):
    a, b, y = torch.arange(3 * 8.0).reshape(3, 8).unbind()
    parts = {"list": [(a, b)], "dict": [{"a": a, "b": b}], "several": [a, b]}[form]
    batches = [(*parts, y[:, None])] * 2
    seen = []

    class Sees(Callback):
        def before_train_iter(self, runner):
            seen.append(len(runner.batch))

    estimator = tasks.estimator(
        model=lambda config: Pair(form), loss=nn.MSELoss(), metrics=None, config={"lr": 1e-4}
    )
    (row,) = estimator.fit(batches, callbacks=[Sees()])
    assert row["batch_count"] == 2
    assert seen == [len(parts) + 1] * 2


def test_the_batches_of_a_table_are_flat_and_loaders_take_options_of_the_config():
    import pandas

    table = pandas.DataFrame({"a": np.arange(10), "b": np.arange(10) / 2, "y": np.ones(10)})
    seen = []

    class Sees(MainCallback):
        def on_iter_forward(self, runner):
            a, b, target = runner.batch
            seen.append((a.dtype, b.dtype, target.dtype, len(a)))
            runner.output = runner.model(torch.stack([a, b], 1).to(b.dtype))
            runner.loss, runner.target = runner.criterion(runner.output[:, 0], target), target

    def model(config):
        return nn.Linear(2, 1).to(config["dtype"])

    columns = {"feature_cols": ["a", "b"], "label_cols": ["y"]}
    for dtype in (torch.float32, torch.float64):
        config = {"lr": 0.01, "dtype": dtype, "drop_last": True, "shuffle": False}
        parts = {"model": model, "loss": nn.MSELoss(), "metrics": None, "config": config}
        tasks.estimator(**parts).fit(table, batch_size=4, callbacks=[Sees()], **columns)
        assert seen[-2:] == [(torch.int64, dtype, dtype, 4)] * 2
    assert len(seen) == 4


@pytest.mark.process
def test_num_workers_of_the_config_load_the_columns():
    class Sees(Callback):
        def before_train_epoch(self, runner):
            self.workers = runner.train_loader.num_workers

    sees = Sees()
    estimator = tasks.estimator(config={"lr": 0.1, "num_workers": 1})
    (row,) = estimator.fit({"x": tasks.X[:20], "y": tasks.Y[:20]}, callbacks=[sees])
    assert (sees.workers, row["num_samples"]) == (1, 20)


def test_labels_and_outputs_may_have_names():
    import pandas

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(64, 1)

        def forward(self, x):
            return {"yes": torch.sigmoid(self.net(x))}

    def loss(config):
        return lambda found, label: functional.binary_cross_entropy(found["yes"], label["yes"])

    class AsArrays(MainCallback):
        def on_pred_forward(self, runner):
            found = runner.model(*runner.batch)
            runner.output = {name: value.numpy() for name, value in found.items()}

    labels = [{"yes": [float(y > 4)]} for y in tasks.Y[:30]]
    table = pandas.DataFrame({"x": list(tasks.X[:30]), "label": labels})
    estimator = tasks.estimator(model=lambda config: Named(), loss=loss, metrics=None)
    columns = {"feature_cols": ["x"], "label_cols": ["label"]}
    rows = estimator.fit(table, 3, validation_data=table, **columns)
    assert rows[-1]["val_loss"] < rows[0]["val_loss"]
    found = estimator.predict(table, feature_cols=["x"], callbacks=[AsArrays()])
    assert found["prediction"][0]["yes"].shape == (1,)


def test_predictions_of_several_outputs_have_the_columns_that_are_named():
    import pandas

    class Two(nn.Module):
        def forward(self, x):
            return x[:, 0], x

    table = pandas.DataFrame({"x": list(tasks.X[:5])})
    estimator = Estimator.from_torch(model=lambda config: Two(), backend="local")
    found = estimator.predict(table, feature_cols=["x"], output_cols=["one", "all"])
    assert list(found.columns) == ["x", "one", "all"]
    np.testing.assert_array_equal(np.stack(list(found["all"])), tasks.X[:5])
    with pytest.raises(ValueError, match="the model returns 2 outputs"):
        estimator.predict(table, feature_cols=["x"], output_cols=["one"])


def test_methods_of_callbacks_for_orca_2_1_are_named_and_not_called(caplog):
    class Older(Callback):
        def on_epoch_end(self, epoch, logs=None):
            pytest.fail("Orca 2.2 does not call it")

        def after_train_epoch(self, runner):
            self.seen = runner.epochs

    older = Older()
    tasks.estimator().fit(tasks.train, callbacks=[older])
    assert older.seen == 1
    assert "Older.on_epoch_end is for Orca 2.1 and is not called since 2.2" in caplog.text


def test_a_saved_state_is_read_by_torch_without_running_code_and_is_continued(tmp_path):
    estimator = tasks.estimator(scheduler_creator=tasks.scheduler)
    estimator.fit(tasks.train, 2, batch_size=25)
    estimator.save(tmp_path / "m.pth")
    state = torch.load(tmp_path / "m.pth", weights_only=True)
    assert (state["epoch"], state["global_step"]) == (2, 8)
    assert state.keys() >= {"models", "optimizers", "schedulers"}
    model = tasks.model({})
    model.load_state_dict(state["models"][0])
    assert same_bits(model, estimator.get_model())
    again = tasks.estimator(config={"seed": 1, "lr": 0.1}, scheduler_creator=tasks.scheduler)
    again.load(tmp_path / "m.pth")
    found = again.get_state_dict()
    assert found["schedulers"] == state["schedulers"]
    momentum = [s["optimizers"][0]["state"][0]["momentum_buffer"] for s in (found, state)]
    assert momentum[0].equal(momentum[1])
    (row,) = again.fit(tasks.train, batch_size=25)
    assert row["epoch"] == 3
    assert again.get_state_dict()["global_step"] == 12
    without = Estimator.from_torch(model=tasks.model, backend="local")
    without.load(tmp_path / "m.pth")
    assert same_bits(without.get_model(), estimator.get_model())


def test_weights_in_other_forms_are_loaded(tmp_path):
    expected = tasks.model({"seed": 7})
    for name, value in (("bare", expected.state_dict()), ("list", [expected.state_dict()])):
        torch.save(value, tmp_path / name)
        estimator = tasks.estimator()
        estimator.load(tmp_path / name)
        assert same_bits(estimator.get_model(), expected)


def test_an_entire_model_gives_an_estimator_its_model(tmp_path):
    estimator = tasks.estimator()
    estimator.fit(tasks.train)
    estimator.save(tmp_path / "entire.pth", entire=True)
    again = Estimator.from_torch(
        optimizer=tasks.optimizer, loss=nn.CrossEntropyLoss(), backend="local"
    )
    with pytest.raises(ValueError, match="has no model"):
        again.predict(tasks.X[:2])
    again.load(tmp_path / "entire.pth")
    assert same_bits(again.get_model(), estimator.get_model())
    (row,) = again.fit(tasks.train)
    assert row["epoch"] == 1
    assert not same_bits(again.get_model(), estimator.get_model())


class Unsafe:
    def __reduce__(self):
        return print, ("code of the file ran",)


def test_a_file_that_would_run_code_is_refused(tmp_path, capsys):
    torch.save({"models": [Unsafe()]}, tmp_path / "unsafe.pth")
    with pytest.raises(CheckpointError, match="no model class that is imported here"):
        tasks.estimator().load(tmp_path / "unsafe.pth")
    assert "ran" not in capsys.readouterr().out


def test_a_callback_saves_a_state_and_sets_the_number_of_epochs(tmp_path):
    class Saves(Callback):
        def before_run(self, runner):
            runner.num_epochs = 2

        def after_train_epoch(self, runner):
            runner.save_checkpoint(tmp_path / f"{runner.epochs}.pt", save_weights_only=True)

    estimator = tasks.estimator()
    assert len(estimator.fit(tasks.train, 5, callbacks=[Saves()])) == 2
    state = torch.load(tmp_path / "2.pt", weights_only=True)
    assert state.keys() == {"epoch", "models"}
    again = tasks.estimator(config={"seed": 3})
    again.load(tmp_path / "2.pt")
    assert same_bits(again.get_model(), estimator.get_model())


def test_a_loader_is_predicted_without_its_targets():
    estimator = Estimator.from_torch(model=tasks.model, backend="local")
    assert estimator.predict(DataLoader(tasks.data(10), batch_size=4)).shape == (10, 10)


def test_a_dataset_of_ray_has_one_label_column():
    class RayDataset:
        def columns(self):
            return ["x", "y", "z"]

        to_pandas = iter_batches = None

    with pytest.raises(ValueError, match=r"has one label column, got \['y', 'z'\]"):
        tasks.estimator().fit(RayDataset(), feature_cols=["x"], label_cols=["y", "z"])


def test_ray_is_not_started_in_the_place_of_the_executors_of_spark(monkeypatch):
    session = SimpleNamespace(sparkContext=SimpleNamespace(master="yarn"))
    monkeypatch.setattr(OrcaContext, "session", session)
    monkeypatch.setattr(OrcaContext, "runtime", "spark")
    monkeypatch.setattr("stoker.dialects.orca.common._ray_runs", lambda: False)  # of other tests
    with pytest.raises(ValueError, match="Spark runs on 'yarn', and Ray is not started on its"):
        tasks.estimator(backend="ray").fit(tasks.train)


@pytest.mark.parametrize("shuffles", [False, True])
def test_workers_of_a_cluster_shuffle_what_a_creator_reads_in_order(shuffles, tmp_path):
    seen = []

    class Sees(Callback):
        def before_train_iter(self, runner):
            seen.extend(runner.batch[0][:, 0].tolist())

    def creator(config, batch_size):
        return DataLoader(rows, batch_size, collate_fn=collate)

    def collate(samples):
        return torch.tensor([[float(x)] for x, _ in samples]), torch.zeros(len(samples), dtype=int)

    rows = [(number, 0) for number in range(40)]
    parts = Parts(lambda config: nn.Linear(1, 2), lambda m, c: torch.optim.SGD(m.parameters(), 0.1),
                  nn.CrossEntropyLoss(), None, "epoch", None, {})  # fmt: skip
    job = Job(parts, "fit", creator, 4, [Sees()], str(tmp_path), False, epochs=1, shuffles=shuffles)
    work(job)
    assert sorted(seen) == list(range(40))
    assert (seen == sorted(seen)) is not shuffles
    own = DataLoader(rows, sampler=WeightedRandomSampler([1.0] * 40, 40))
    assert shuffled(own) is own
    own = DataLoader(rows, batch_sampler=[[3, 1], [2]])
    assert shuffled(own) is own


def test_functions_next_to_a_script_reach_workers_that_cannot_import_their_module(
    tmp_path, monkeypatch
):
    from pyspark import cloudpickle

    (tmp_path / "helpers_of_a_script.py").write_text(
        "import json\n\ndef double(x):\n    return json.loads('2') * x\n"
    )
    with monkeypatch.context() as driver:
        driver.syspath_prepend(str(tmp_path))
        double = import_module("helpers_of_a_script").double
        shards._send_by_value(double.__module__)
        shards._send_by_value("json")
        sent = cloudpickle.dumps((double, json.dumps))
    monkeypatch.delitem(sys.modules, "helpers_of_a_script")
    received, dumps = pickle.loads(sent)
    assert received(4) == 8
    assert dumps is json.dumps  # an installed module is imported
