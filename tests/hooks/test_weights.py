import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from stoker import Engine, Hook, Trainer, hooks
from stoker.hooks import Callback
from support.toys import batches, engine, loader, net, same_bits, sgd, trainer, weights


def test_the_average_follows_the_weights_by_the_formula():
    model = net()
    expected = model[0].weight.detach().clone()
    averages = []

    def follow(run):
        expected.lerp_(model[0].weight.detach(), 0.25)

    ema = hooks.EMA(0.75)
    trainer(ema, Callback(after_step=follow), model=model).fit(batches(), epochs=1)
    averages = ema.state_dict()["average"]
    torch.testing.assert_close(averages["0.weight"], expected)


def test_the_average_is_evaluated_and_training_continues_with_its_own_weights():
    mine, theirs = net(), net()
    compute_loss = []

    class Looks(Hook):
        def before_val_step(self, run):
            compute_loss.append(mine[0].weight.detach().clone())

    ema = hooks.EMA(0.9)
    trainer(ema, Looks(), model=mine).fit(batches(), batches(4), epochs=2)
    trainer(model=theirs).fit(batches(), epochs=2)
    assert same_bits(mine, theirs)
    assert torch.equal(compute_loss[-1], ema.state_dict()["average"]["0.weight"])
    assert not torch.equal(compute_loss[-1], mine[0].weight)


def test_a_validation_that_fails_does_not_leave_the_average_in_place():
    mine, theirs = net(), net()
    broken = trainer(hooks.EMA(0.9), Callback(after_val_step=lambda run: 1 / 0), model=mine)
    with pytest.raises(ZeroDivisionError):
        broken.fit(batches(), batches(4), epochs=1)
    trainer(model=theirs).fit(batches(), epochs=1)
    assert same_bits(mine, theirs)


def test_the_average_can_be_left_in_the_model():
    model = net()
    ema = hooks.EMA(0.9, use_at_end=True)
    seen = []
    look = Callback(
        priority=60, after_train=lambda run: seen.append(ema.state_dict()["average"]["0.weight"])
    )
    trainer(ema, look, model=model).fit(batches(), epochs=1)
    assert torch.equal(model[0].weight, seen[0])


def test_the_state_of_the_average_comes_back():
    first, second = hooks.EMA(0.9), hooks.EMA(0.9)
    trainer(first).fit(batches(), epochs=1)
    second.load_state_dict(first.state_dict())
    pairs = zip(*(one.state_dict()["average"].values() for one in (first, second)), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.row("T25")
def test_the_weights_of_the_best_evaluation_are_left_in_the_model(tmp_path):
    model = net()
    kept = []

    class Scores(Hook):
        priority = 20
        values = iter([1.0, 5.0, 3.0, 2.0])

        def after_val(self, run):
            run.record("val/score", next(self.values))
            kept.append(weights(model))

    best = hooks.KeepBest("val/score")
    run = Trainer(engine(model), [Scores(), best, hooks.SaveWeights()], run_dir=tmp_path)
    run.fit(batches(), batches(4), epochs=4)
    assert same_bits(kept[1], model)
    assert best.step == 10
    assert same_bits(load_file(tmp_path / "model.safetensors"), model)


@pytest.mark.slow
def test_the_best_weights_survive():
    first, second = hooks.KeepBest("val/loss"), hooks.KeepBest("val/loss")
    run = trainer(hooks.Loss(), first)
    run.fit(batches(), batches(4), epochs=2)
    second.load_state_dict(first.state_dict())
    assert second.monitor.best == first.monitor.best
    assert second.step == first.step


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.neck = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.neck(self.body(x)))


@pytest.mark.slow
@pytest.mark.row("T11")
@pytest.mark.parametrize(
    ("options", "frozen"),
    [
        ({"names": ["head"]}, {"head"}),
        ({"names": "neck"}, {"neck"}),
        ({"indices": [-1, 0]}, {"head", "body"}),
        ({"up_to": -1}, {"body", "neck"}),
        ({"up_to": slice(1, None)}, {"neck", "head"}),
    ],
)
def test_frozen_layers_are_unchanged_by_training(options, frozen):
    model = Backbone()
    before = weights(model)
    trainer(hooks.FreezeLayers(**options), model=model).fit(batches(), epochs=1)
    changed = {
        name.split(".")[0]
        for name, p in model.named_parameters()
        if not torch.equal(before[name], p)
    }
    assert changed == {"body", "neck", "head"} - frozen


@pytest.mark.slow
@pytest.mark.row("T11")
def test_freeze_bn_keeps_running_statistics_across_validation():
    model = Backbone()
    before = weights(model)
    freeze = hooks.FreezeLayers(freeze_bn=True)
    trainer(freeze, model=model).fit(batches(), batches(8), epochs=2, validate_every=2)
    assert torch.equal(before["body.1.running_mean"], model.body[1].running_mean)
    assert not torch.equal(before["head.weight"], model.head.weight)
    assert model.body[1].training


@pytest.mark.slow
def test_layers_thaw_on_request():
    model = Backbone()
    before = weights(model)
    seen = []
    look = Callback(
        after_epoch=lambda run: seen.append(torch.equal(before["head.weight"], model.head.weight))
    )
    trainer(hooks.FreezeLayers(["head"], until_epoch=2), look, model=model).fit(batches(), epochs=3)
    assert seen == [True, True, False]


def test_an_unknown_layer_is_refused_before_training():
    run = trainer(hooks.FreezeLayers(["haed"]), model=Backbone())
    with pytest.raises(ValueError, match="no layer named 'haed'; did you mean 'head'"):
        run.fit(batches(), epochs=1)
    assert run.run.step == 0


def test_saved_weights_load_into_a_bare_model(tmp_path):
    path = tmp_path / "a b" / "weights.safetensors"
    model = net()
    trainer(hooks.SaveWeights(path, every="1ep"), model=model).fit(batches(), epochs=1)
    other = net(seed=1)
    other.load_state_dict(load_file(path))
    assert same_bits(model, other)
    assert [p.name for p in path.parent.iterdir()] == ["weights.safetensors"]


def test_tied_weights_can_be_saved(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    run = Trainer(
        Engine(model, sgd(model), nn.CrossEntropyLoss()), [hooks.SaveWeights(tmp_path / "w")]
    )
    run.fit(batches(), epochs=1)
    assert (tmp_path / "w").exists()


def test_saving_without_a_place_is_refused():
    with pytest.raises(
        ValueError, match="SaveWeights has nowhere to write: pass run_dir to the Trainer"
    ):
        trainer(hooks.SaveWeights()).fit(batches(), epochs=1)


def test_a_failed_run_does_not_write_final_weights(tmp_path):
    run = trainer(hooks.SaveWeights(tmp_path / "w"), Callback(after_step=lambda run: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        run.fit(batches(), epochs=1)
    assert not (tmp_path / "w").exists()


def test_a_plateau_lowers_the_rate():
    model = net()
    optimizer = sgd(model, lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.1)

    class Flat(Hook):
        priority = 20

        def after_val(self, run):
            run.record("val/loss", 1.0)

    run = Trainer(Engine(model, optimizer, nn.CrossEntropyLoss()), [Flat(), hooks.Plateau(plateau)])
    run.fit(batches(4), batches(4), epochs=3)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_a_plateau_takes_its_scheduler_alone():
    with pytest.raises(TypeError, match="scheduler is a SGD, expected a ReduceLROnPlateau"):
        hooks.Plateau(sgd(net()))


def test_the_last_shuffled_epoch_is_the_same_with_and_without_keeping_the_best():
    mine, theirs = net(), net()
    Trainer(engine(mine), [hooks.Loss(), hooks.KeepBest("train/loss")], seed=0).fit(
        loader(shuffle=True), epochs=1
    )
    Trainer(engine(theirs), [], seed=0).fit(loader(shuffle=True), epochs=1)
    assert same_bits(mine, theirs)


def test_an_average_that_was_left_in_the_model_is_the_model():
    model = net()
    run = trainer(hooks.Loss(), hooks.EMA(0.9, use_at_end=True), model=model)
    run.fit(batches(), epochs=1)
    expected = sum(
        float(nn.functional.cross_entropy(model.eval()(x).detach(), y)) * len(x)
        for x, y in batches()
    )
    assert run.evaluate(batches())["val/loss"] == pytest.approx(expected / 20, rel=1e-5)


def test_the_last_file_holds_the_best_weights_though_one_was_written_at_that_step(tmp_path):
    class Scores(Hook):
        priority = 20
        values = iter([5.0, 1.0])

        def after_val(self, run):
            run.record("val/score", next(self.values))

    model = net()
    save = hooks.SaveWeights(tmp_path / "w", every="1ep")
    run = trainer(Scores(), hooks.KeepBest("val/score"), save, model=model)
    run.fit(batches(), batches(4), epochs=2)
    assert same_bits(load_file(tmp_path / "w"), model)


def test_a_hook_may_ask_to_save_when_a_validation_was_good(tmp_path):
    saved = []

    def judge(run):
        if run.step == 2:
            run.request("save")

    look = Callback(
        name="look", priority=95, after_val=lambda run: saved.append((tmp_path / "w").exists())
    )
    save = hooks.SaveWeights(tmp_path / "w")
    trainer(Callback(after_val=judge), save, look).fit(
        batches(), batches(4), epochs=1, validate_every=1
    )
    assert saved == [False, True, True, True, True]


def test_batch_norms_thaw_with_their_layers():
    model = Backbone()
    before = weights(model)
    seen = []
    look = Callback(
        after_epoch=lambda run: seen.append(
            torch.equal(before["body.1.running_mean"], model.body[1].running_mean)
        )
    )
    freeze = hooks.FreezeLayers(["body"], freeze_bn=True, until_epoch=1)
    trainer(freeze, look, model=model).fit(batches(), epochs=2)
    assert seen == [True, False]


def test_after_a_fit_the_weights_in_the_model_are_the_evaluated_ones():
    model = net()
    run = trainer(hooks.Loss(), hooks.EMA(0.9), hooks.KeepBest("val/loss"), model=model)
    run.fit(batches(), batches(8), epochs=3)
    expected = sum(
        float(nn.functional.cross_entropy(model.eval()(x).detach(), y)) * len(x)
        for x, y in batches(8)
    )
    assert run.evaluate(batches(8))["val/loss"] == pytest.approx(expected / 8, rel=1e-5)


def test_saving_onto_a_folder_is_refused_before_training(tmp_path):
    with pytest.raises(ValueError, match="is a folder"):
        trainer(hooks.SaveWeights(tmp_path)).fit(batches(), epochs=1)
