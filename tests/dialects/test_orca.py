"""Orca's callbacks, runner and estimator on Stoker, in one process."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from stoker.dialects.orca.learn.metrics import MSE, Accuracy, BinaryAccuracy, Top5Accuracy
from stoker.dialects.orca.learn.pytorch import Estimator
from stoker.dialects.orca.learn.pytorch.callbacks import Callback, MainCallBack, MainCallback
from support.tasks import orca as tasks
from support.toys import same_bits, weights

EPOCH = [
    "before_train_epoch",
    *["before_train_iter", "on_train_forward", "on_iter_backward", "after_train_iter"] * 2,
    "on_lr_adjust",
    "before_val_epoch",
    "before_val_iter",
    "on_val_forward",
    "after_val_iter",
    "after_val_epoch",
    "after_train_epoch",
]


@pytest.mark.row("O01")
def test_the_points_of_fit_evaluate_and_predict_come_in_order():
    recorder = tasks.Recorder()
    estimator = tasks.estimator(config={"rows": 100})
    estimator.fit(tasks.train, 2, batch_size=50, validation_data=tasks.val, callbacks=[recorder])
    assert recorder.points == ["before_run", *EPOCH, *EPOCH, "after_run"]
    recorder.points.clear()
    estimator.evaluate(tasks.val, batch_size=50, callbacks=[recorder])
    assert recorder.points == EPOCH[-6:-1]
    recorder.points.clear()
    estimator.predict(tasks.X[:4], batch_size=4, callbacks=[recorder])
    names = ("before_pred_epoch", "before_pred_iter", "on_pred_forward", "after_pred_iter")
    assert recorder.points == [*names, "after_pred_epoch"]


@pytest.mark.row("O02")
def test_one_owner_goes_first_two_are_an_error_and_the_list_stays():
    order = []

    class Owner(MainCallback):
        def before_run(self, runner):
            order.append("owner")

    class Other(Callback):
        def before_run(self, runner):
            order.append("other")

    given = [Other(), Owner()]
    kept = list(given)
    tasks.estimator().fit(tasks.train, callbacks=given)
    assert order == ["owner", "other"]
    assert given == kept
    with pytest.raises(ValueError, match=r"2 owners .* \(Owner, MainCallback\)"):
        tasks.estimator().fit(tasks.train, callbacks=[Owner(), MainCallBack()])
    with pytest.raises(TypeError, match="the class Other, expected a Callback object"):
        tasks.estimator().fit(tasks.train, callbacks=[Other])


class Detector(nn.Module):
    """Returns a dict of losses, as models for object detection do."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(64, 10)

    def forward(self, image, target):
        scores = self.net(image)
        return {
            "classifier": nn.functional.cross_entropy(scores, target),
            "small": scores.square().mean(),
        }


@pytest.mark.row("O03")
def test_a_loss_computed_inside_the_model_trains_and_validates_without_a_criterion():
    class CustomMainCB(MainCallBack):
        def on_iter_forward(self, runner):
            image, target = runner.batch
            runner.output = runner.model(image, target)
            runner.loss = sum(loss for loss in runner.output.values())

    estimator = tasks.estimator(model=lambda config: Detector(), loss=None, metrics=None)
    rows = estimator.fit(tasks.train, 3, validation_data=tasks.val, callbacks=[CustomMainCB()])
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    assert rows[-1]["val_loss"] < rows[0]["val_loss"]


@pytest.mark.row("O04")
@pytest.mark.parametrize("missing", ["output", "loss"])
def test_a_forward_that_forgets_something_is_named(missing):
    class Forgets(MainCallback):
        def on_iter_forward(self, runner):
            super().on_iter_forward(runner)
            delattr(runner, missing)

    with pytest.raises(
        ValueError, match=rf"Forgets\.on_iter_forward did not set runner\.{missing}"
    ):
        tasks.estimator().fit(tasks.train, callbacks=[Forgets()])


@pytest.mark.row("O05")
def test_each_part_of_the_owner_is_replaced_alone():
    seen = []

    class ValOnly(MainCallback):
        def on_val_forward(self, runner):
            seen.append(("val", runner.engine.training))
            super().on_val_forward(runner)

    class Both(MainCallback):
        def on_iter_forward(self, runner):
            seen.append(("both", runner.engine.training))
            super().on_iter_forward(runner)

    class NoUpdate(MainCallback):
        def on_iter_backward(self, runner):
            runner.optimizer.zero_grad()
            runner.loss.backward()

    fit = {"data": tasks.train, "batch_size": 100, "validation_data": tasks.val}
    tasks.estimator().fit(**fit, callbacks=[ValOnly()])
    assert seen == [("val", False)]
    tasks.estimator().fit(**fit, callbacks=[Both()])
    assert seen[1:] == [("both", True), ("both", False)]
    estimator = tasks.estimator()
    before = weights(estimator.get_model())
    estimator.fit(**fit, callbacks=[NoUpdate()])
    assert same_bits(before, estimator.get_model())


class RateByHand(MainCallBack):
    """Sets the rate from the epoch and the batch, and records when, and which rate was used."""

    def __init__(self):
        self.set, self.points = [], []

    def on_iter_backward(self, runner):
        self.points.append(runner.optimizer.param_groups[0]["lr"])
        super().on_iter_backward(runner)

    def before_val_epoch(self, runner):
        self.points.append("validation")

    def on_lr_adjust(self, runner):
        rate = 0.1 / (1 + 4 * runner.epochs + runner.batch_idx)
        self.set.append((runner.epochs, runner.batch_idx))
        self.points.append(f"set {rate}")
        for group in runner.optimizer.param_groups:
            group["lr"] = rate
        return rate


def plain_sgd(model, config):
    return torch.optim.SGD(model.parameters(), lr=config["lr"])


@pytest.mark.row("O06")
def test_a_learning_rate_set_by_hand_reads_batch_and_epoch_and_holds_for_the_next_update():
    owner, parts = RateByHand(), {"model": tasks.seeded, "optimizer": plain_sgd}
    estimator = tasks.estimator(scheduler_step_freq="batch", **parts)
    estimator.fit(tasks.train, 2, batch_size=25, callbacks=[owner])
    assert owner.set == [(epoch, batch) for epoch in (0, 1) for batch in range(4)]
    rates = [0.1, *(0.1 / (1 + 4 * epoch + batch) for epoch, batch in owner.set)]
    used = [point for point in owner.points if isinstance(point, float)]
    assert used == rates[:-1]
    model, loader, step = tasks.seeded({}), tasks.train({}, 25), iter(rates)
    for x, y in [batch for _ in range(2) for batch in loader]:
        gradients = torch.autograd.grad(
            nn.functional.cross_entropy(model(x), y), list(model.parameters())
        )
        rate = next(step)
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.add_(gradient, alpha=-rate)
    assert same_bits(model, estimator.get_model())


@pytest.mark.row("O06")
def test_a_learning_rate_set_by_hand_per_epoch_is_set_once_and_before_the_validation():
    owner = RateByHand()
    estimator = tasks.estimator(model=tasks.seeded, optimizer=plain_sgd)
    estimator.fit(tasks.train, 2, batch_size=50, validation_data=tasks.val, callbacks=[owner])
    assert owner.set == [(0, 1), (1, 1)]
    first, second = 0.1 / 2, 0.1 / 6
    assert owner.points == [
        0.1, 0.1, f"set {first}", "validation", first, first, f"set {second}", "validation"
    ]  # fmt: skip


@pytest.mark.row("O06")
def test_a_scheduler_moves_once_per_epoch():
    rates = []

    class Rates(Callback):
        def before_train_epoch(self, runner):
            rates.append(runner.optimizer.param_groups[0]["lr"])
            assert runner.scheduler is runner.lr_scheduler is not None

    estimator = tasks.estimator(scheduler_creator=tasks.scheduler)
    estimator.fit(tasks.train, 3, callbacks=[Rates()])
    assert rates == [0.1, 0.05, 0.025]


@pytest.mark.row("O07")
def test_what_is_global_is_there_throughout_and_the_pocket_names_its_keys():
    names = ["num_epochs", "epochs", "train_loader", "val_loader", "rank", "size", "model"]
    names += ["optimizer", "scheduler", "criterion", "config", "global_step", "metrics", "stop"]

    class Looks(Callback):
        def before_run(self, runner):
            self.found = {name: getattr(runner, name) for name in names}
            runner.put("hits", 0)
            runner.put("gone", 1)
            runner.remove("gone")
            with pytest.raises(KeyError, match="'gone'"):
                runner.get("gone")
            with pytest.raises(KeyError, match="already"):
                runner.put("hits", 1)

        def after_train_iter(self, runner):
            assert runner.output is runner.outputs
            runner.update("hits", runner.get("hits") + 1)

        def after_run(self, runner):
            assert {name: getattr(runner, name) for name in names}.keys() == self.found.keys()
            self.hits, self.epochs = runner.get("hits"), runner.epochs
            with pytest.raises(AttributeError, match="did you mean 'criterion'"):
                runner.criterium

    looks = Looks()
    tasks.estimator().fit(
        tasks.train, 2, batch_size=25, validation_data=tasks.val, callbacks=[looks]
    )
    assert looks.found["num_epochs"] == 2
    assert looks.found["epochs"] == looks.found["rank"] == 0
    assert looks.found["val_loader"] is not None
    assert (looks.hits, looks.epochs) == (8, 2)


@pytest.mark.row("O08")
def test_what_belongs_to_an_iteration_is_gone_right_after_it():
    class Leaks(Callback):
        def __init__(self):
            self.checked = []

        def gone(self, runner, *names):
            for name in names:
                with pytest.raises(AttributeError, match=f"runner.{name} belongs to an iteration"):
                    getattr(runner, name)

        def before_iter(self, runner):
            assert runner.batch_idx >= 0
            assert runner.batch is not None
            self.gone(runner, "output", "loss", "target")

        def after_iter(self, runner):
            self.checked.append((runner.batch_idx, runner.output is not None))

        def before_epoch(self, runner):
            self.gone(runner, "batch", "batch_idx", "output", "loss")

        after_epoch = after_run = before_epoch

    leaks, estimator = Leaks(), tasks.estimator()
    fit = {"batch_size": 50, "callbacks": [leaks]}
    estimator.fit(tasks.train, validation_data=tasks.val, **fit)
    estimator.predict(tasks.X[:60], **fit)
    assert leaks.checked == [(0, True), (1, True), (0, True), (0, True), (1, True)]


@pytest.mark.row("O09")
def test_general_points_fire_in_every_stage_unless_silenced():
    class General(Callback):
        def __init__(self):
            self.seen = []

        def before_iter(self, runner):
            self.seen.append(f"before {runner.run.task}")

        def on_iter_end(self, runner):
            self.seen.append("after")

    class Silenced(General):
        def before_train_iter(self, runner):
            pass

    for kind, expected in ((General, 2), (Silenced, 1)):
        callback, estimator = kind(), tasks.estimator()
        fit = {"batch_size": 100, "callbacks": [callback]}
        estimator.fit(tasks.train, validation_data=tasks.val, **fit)
        assert callback.seen.count("before fit") == expected
        assert callback.seen.count("after") == 2
        estimator.predict(tasks.X[:10], **fit)
        assert callback.seen[-2:] == ["before predict", "after"]


def test_the_older_spelling_is_called_too():
    class Older(Callback):
        def __init__(self):
            self.seen = []

        def on_run_begin(self, runner):
            self.seen.append("run")

        def on_epoch_begin(self, runner):
            self.seen.append(f"epoch {runner.epoch}")

        def on_iter_begin(self, runner):
            self.seen.append("iter")

        def on_iter_end(self, runner):
            self.seen.append("end of iter")

        def on_epoch_end(self, runner):
            self.seen.append("end of epoch")

        def on_run_end(self, runner):
            self.seen.append("end of run")

    older = Older()
    tasks.estimator().fit(tasks.train, batch_size=100, callbacks=[older])
    assert older.seen == [
        "run", "epoch 1", "iter", "end of iter", "end of epoch", "end of run"
    ]  # fmt: skip


@pytest.mark.row("O10")
def test_stop_ends_the_run_once_and_a_later_fit_starts_clean():
    recorder, estimator = tasks.Recorder(), tasks.estimator()
    rows = estimator.fit(tasks.train, 5, batch_size=25, callbacks=[tasks.Stops(), recorder])
    assert [row["batch_count"] for row in rows] == [2]
    assert recorder.points.count("before_train_iter") == 2
    assert recorder.points.count("after_train_epoch") == recorder.points.count("after_run") == 1
    rows = estimator.fit(tasks.train, 2, batch_size=25)
    assert [(row["epoch"], row["batch_count"]) for row in rows] == [(2, 4), (3, 4)]


@pytest.mark.slow
@pytest.mark.row("O11")
def test_max_steps_overrides_epochs_and_counts_from_the_beginning(tmp_path):
    first = tasks.estimator(model_dir=tmp_path)
    first.fit(tasks.train, 5, max_steps=3, batch_size=25)
    assert first.get_state_dict()["global_step"] == 3
    again = tasks.estimator(model_dir=tmp_path)
    seen = []

    class Counts(Callback):
        def after_train_iter(self, runner):
            seen.append(runner.global_step)

    again.fit(tasks.train, max_steps=7, batch_size=25, callbacks=[Counts()])
    assert seen == [4, 5, 6, 7]
    whole = tasks.estimator()
    whole.fit(tasks.train, max_steps=7, batch_size=25)
    assert whole.get_state_dict()["global_step"] == 7


@pytest.mark.row("O12")
def test_fit_returns_the_stats_of_each_epoch_and_means_are_over_samples():
    estimator = tasks.estimator(model=tasks.seeded, config={"rows": 90, "lr": 0.0})
    rows = estimator.fit(tasks.train, 2, batch_size=40, validation_data=tasks.val)
    names = ("epoch", "batch_count", "num_samples", "val_num_samples")
    assert [[row[name] for name in names] for row in rows] == [[1, 3, 90, 50], [2, 3, 90, 50]]
    expected = {"train_loss", "last_train_loss", "val_loss", "val_accuracy"}
    assert all(row.keys() == {*names, *expected} for row in rows)
    model, loss = tasks.seeded({}), nn.functional.cross_entropy
    x, y = torch.from_numpy(tasks.X[:50]), torch.from_numpy(tasks.Y[:50])
    with torch.no_grad():
        losses = [(float(loss(model(a), b)), len(b)) for a, b in tasks.train({"rows": 90}, 40)]
        val_loss, hits = float(loss(model(x), y)), (model(x).argmax(1) == y).sum()
    assert [size for _, size in losses] == [40, 40, 10]
    mean = sum(one * size for one, size in losses) / 90
    assert [row["train_loss"] for row in rows] == pytest.approx([mean, mean], rel=1e-6)
    assert rows[0]["last_train_loss"] == pytest.approx(losses[-1][0], rel=1e-6)
    assert [row["val_loss"] for row in rows] == pytest.approx([val_loss, val_loss], rel=1e-6)
    assert [row["val_accuracy"].item() for row in rows] == [float(hits) / 50] * 2
    (row,) = estimator.fit(tasks.train, batch_size=40)
    assert row.keys() == {*names[:3], "train_loss", "last_train_loss"}


def test_an_evaluation_has_the_names_of_orca_and_finds_others():
    estimator = tasks.estimator(model=tasks.seeded)
    found = estimator.evaluate(tasks.val, batch_size=7)
    assert list(found) == ["Accuracy", "val_loss", "num_samples"]
    assert isinstance(found["Accuracy"], torch.Tensor)
    assert found["val_Accuracy"] is found["accuracy"] is found["Accuracy"]
    assert found["val_num_samples"] == found["num_samples"] == 50
    with pytest.raises(KeyError, match="did you mean 'Accuracy'"):
        found["Acuracy"]
    assert estimator.evaluate(tasks.val, batch_size=7, num_steps=2)["num_samples"] == 14


def test_a_profile_has_mean_seconds():
    estimator = tasks.estimator()
    (row,) = estimator.fit(tasks.train, validation_data=tasks.val, profile=True)
    validation = {"mean_validation_s", "mean_eval_fwd_s"}
    training = {"mean_fwd_s", "mean_bwd_s", "mean_train_epoch_s"}
    assert row["profile"].keys() == training | validation
    found = estimator.evaluate(tasks.val, profile=True)["profile"]
    assert found.keys() == validation
    assert found["mean_validation_s"] >= found["mean_eval_fwd_s"] > 0


def test_the_stats_of_each_worker_are_a_list():
    estimator = tasks.estimator(model=tasks.seeded, config={"lr": 0.0})
    data = {"validation_data": tasks.val, "batch_size": 40}
    (row,) = estimator.fit(tasks.train, **data)
    ((own,),) = estimator.fit(tasks.train, reduce_results=False, **data)
    for name in ("batch_count", "num_samples", "val_num_samples"):
        assert own[name] == row[name]
    for name in ("train_loss", "val_loss", "val_accuracy"):
        assert float(own[name]) == pytest.approx(float(row[name]), rel=1e-6)
    (own,) = estimator.evaluate(tasks.val, reduce_results=False)
    assert own["Accuracy"] == estimator.evaluate(tasks.val)["Accuracy"]


def test_stats_of_workers_become_one_by_their_samples():
    from stoker.dialects.orca.learn.pytorch.utils import process_stats

    workers = [
        {"num_samples": 3, "val_loss": 1.0, "Accuracy": torch.tensor(0.5), "profile": {"a": 1.0}},
        {"num_samples": 1, "val_loss": 2.0, "Accuracy": torch.tensor(1.0), "profile": {"a": 3.0}},
    ]
    found = process_stats(workers)
    assert found["num_samples"] == 4
    assert found["val_loss"] == 1.25
    assert found["Accuracy"].item() == 0.625
    assert found["profile"] == {"a": 2.0}


@pytest.mark.row("O14")
def test_callbacks_see_validation_results_when_the_epoch_ends():
    class Sees(Callback):
        def after_val_epoch(self, runner):
            self.in_val = dict(runner.metrics)

        def after_epoch(self, runner):
            self.in_epoch = dict(runner.epoch_stats)

    sees = Sees()
    tasks.estimator().fit(tasks.train, validation_data=tasks.val, callbacks=[sees])
    assert sees.in_val["val_loss"] == sees.in_epoch["val_loss"]


class Outputs(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form, self.net = form, nn.Linear(64, 1)

    def forward(self, x):
        found = self.net(x)
        forms = {"tensor": found, "tuple": (found, x), "dict": {"a": found}}
        return forms[self.form]


@pytest.mark.row("O15")
@pytest.mark.parametrize("form", ["tensor", "tuple", "dict"])
def test_predict_keeps_shapes_and_the_order_of_the_data(form):
    estimator = Estimator.from_torch(model=lambda config: Outputs(form), backend="local")
    found = estimator.predict(DataLoader(tasks.data(50), batch_size=7))
    with torch.no_grad():
        expected = estimator.get_model()(torch.from_numpy(tasks.X[:50]))
    one = {"tensor": lambda o: o, "tuple": lambda o: o[0], "dict": lambda o: o["a"]}[form]
    assert one(found).shape == (50, 1)
    np.testing.assert_allclose(one(found), one(expected).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.row("O16")
def test_without_optimizer_and_loss_one_can_look_and_fit_is_refused_before_data_is_read():
    estimator = Estimator.from_torch(model=tasks.model, backend="local", metrics=Accuracy())
    assert estimator.evaluate(tasks.val).keys() == {"Accuracy", "num_samples"}
    assert estimator.predict({"x": tasks.X[:3]})["prediction"].shape == (3, 10)
    with pytest.raises(ValueError, match="fit\\(\\) needs an optimizer"):
        estimator.fit(lambda config, batch_size: pytest.fail("data was read"))


@pytest.mark.slow
def test_weights_are_those_of_the_plain_loop():
    estimator = tasks.estimator()
    model = tasks.model({})
    torch.manual_seed(5)
    estimator.get_model()
    torch.manual_seed(5)
    estimator.fit(tasks.train, 2, batch_size=32, validation_data=tasks.val)
    torch.manual_seed(5)
    optimizer = tasks.optimizer(model, {})
    loader = tasks.train({}, 32)
    model.train()
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert same_bits(model, estimator.get_model())


@pytest.mark.slow
def test_data_comes_in_many_forms():
    import pandas

    table = pandas.DataFrame({"x": list(tasks.X[:60]), "y": tasks.Y[:60], "w": 1.0})
    cols = {"feature_cols": ["x"], "label_cols": ["y"]}
    arrays = {"x": tasks.X[:60], "y": tasks.Y[:60]}
    for data, more in (
        (tasks.data(60), {}),
        (DataLoader(tasks.data(60), batch_size=20), {}),
        (lambda config, batch_size: tasks.data(60), {}),
        (arrays, {}),
        (table, cols),
    ):
        estimator = tasks.estimator()
        (row,) = estimator.fit(data, batch_size=20, **more)
        assert (row["batch_count"], row["num_samples"]) == (3, 60)
    found = estimator.predict(table, feature_cols=["x"], output_cols=["scores"])
    assert len(found["scores"][0]) == 10
    assert "prediction" in estimator.predict(table, feature_cols=["x"])


def test_several_columns_are_several_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(2, 1)

        def forward(self, a, b):
            return self.net(torch.stack([a, b], 1)).squeeze(1)

    import pandas

    table = pandas.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "b": [0.0, 1.0, 0.0, 1.0]})
    table["y"] = table.a - table.b
    estimator = tasks.estimator(
        model=lambda config: Two(), loss=nn.MSELoss, metrics=[MSE()], config={"lr": 0.01}
    )
    rows = estimator.fit(table, 3, feature_cols=["a", "b"], label_cols=["y"], validation_data=table)
    assert rows[-1]["val_MSE"] == pytest.approx(rows[-1]["val_loss"])


def test_other_metrics_have_their_names():
    estimator = tasks.estimator(metrics=[Accuracy(), Top5Accuracy()])
    found = estimator.evaluate(tasks.val)
    assert found["val_Top5Accuracy"] >= found["val_Accuracy"]
    net = lambda config: nn.Sequential(nn.Linear(64, 1), nn.Sigmoid(), nn.Flatten(0))
    yes = {"x": tasks.X[:40], "y": (tasks.Y[:40] > 4).astype(np.float32)}
    estimator = tasks.estimator(
        model=net, loss=lambda config: nn.BCELoss(), metrics=BinaryAccuracy()
    )
    assert 0 <= estimator.evaluate(yes)["val_BinaryAccuracy"] <= 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "sprak"}, "did you mean 'spark'"),
        ({"config": {"batch_size": 3}}, "has a batch_size"),
        ({"scheduler_step_freq": "step"}, "one of epoch, batch, got 'step'"),
        ({"workers_per_node": 0}, "integer of at least 1"),
    ],
)
def test_what_an_estimator_cannot_be_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        tasks.estimator(**options)


def test_bad_arguments_of_calls_are_refused():
    estimator = tasks.estimator()
    table = __import__("pandas").DataFrame({"pixels": [1.0]})
    for call, said in (
        (lambda: estimator.fit(table), "feature_cols"),
        (lambda: estimator.fit(table, feature_cols=["pixel"]), "did you mean 'pixels'"),
        (lambda: estimator.fit(tasks.train, feature_cols=["a"]), "about a DataFrame"),
        (lambda: estimator.fit({"X": 1}), "expected 'x' and 'y'"),
        (lambda: estimator.fit(tasks.train, batch_size=0), "batch_size"),
        (lambda: estimator.fit(tasks.train, epochs=-1), "epochs"),
        (lambda: estimator.predict(tasks.val, output_cols=["a"]), "feature_cols"),
        (lambda: estimator.save("."), "is a folder"),
        (lambda: Estimator.from_torch(backend="local").get_model(), "has no model"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    with pytest.raises(TypeError, match="model is a int"):
        Estimator.from_torch(model=3)
    with pytest.raises(TypeError, match="returned a int, expected a torch.nn.Module"):
        tasks.estimator(model=lambda config: 3).fit(tasks.train)
    with pytest.raises(TypeError, match="returned None, expected a loader"):
        estimator.fit(lambda config, batch_size: None)


@pytest.mark.parametrize("name", ["horovod", "torch_distributed", "ray"])
def test_older_names_of_a_backend_are_accepted(name):
    assert (
        Estimator.from_torch(model=lambda config: nn.Linear(1, 1), backend=name)._backend == "ray"
    )
    with pytest.raises(ValueError, match=f"got '{name}x'; did you mean '{name}'"):
        Estimator.from_torch(backend=f"{name}x")
