"""Every public method of Towhee's Trainer can be overridden, and is then called."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from stoker.core.errors import CheckpointError
from stoker.dialects.towhee.trainer.callback import Callback
from stoker.dialects.towhee.trainer.metrics import get_metric_by_name
from stoker.dialects.towhee.trainer.trainer import Trainer
from stoker.dialects.towhee.trainer.training_config import TrainingConfig
from stoker.dialects.towhee.trainer.utils.trainer_utils import reduce_value, send_to_device

CALLED_BY_TRAIN = {
    "train", "train_step", "compute_loss", "compute_metric", "update_metrics", "evaluate",
    "evaluate_step", "prepare_inputs", "set_train_mode", "setup_before_train", "save", "load",
    "get_train_dataloader", "get_eval_dataloader",
}  # fmt: skip
CALLED_BY_USERS = {"predict", "add_callback", "set_optimizer", "set_loss", "push_model_to_hub"}
HELPERS = {"measured", "results", "owns", "ready"}  # Stoker's own
PARTS_OF_OTHERS = {  # called by the default body of a method that is itself overridden
    "compute_loss", "update_metrics", "compute_metric",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def data(size: int = 16) -> TensorDataset:
    torch.manual_seed(3)
    return TensorDataset(torch.randn(size, 4), torch.arange(size) % 3)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))


def made(kind=Trainer, **changes) -> Trainer:
    usual = {"output_dir": "out", "print_steps": 1, "tensorboard": None, "lr": 0.01}
    return kind(net(), TrainingConfig(**{**usual, **changes}), data(), data(8))


def methods() -> set[str]:
    found = inspect.getmembers(Trainer, inspect.isfunction)
    return {name for name, _ in found if not name.startswith("_")}


def overriding(name: str, calls: list[str]) -> type[Trainer]:
    """A subclass that overrides one method around the usual one, and notes its calls."""

    def method(self, *arguments, **named):
        calls.append(name)
        return getattr(super(kind, self), name)(*arguments, **named)

    kind = type("Own", (Trainer,), {name: method})
    return kind


def same_weights(one: Trainer, other: Trainer) -> bool:
    states = (t.model.state_dict().values() for t in (one, other))
    return all(a.equal(b) for a, b in zip(*states, strict=True))


def test_the_table_of_methods_is_complete():
    assert methods() == CALLED_BY_TRAIN | CALLED_BY_USERS | HELPERS


@pytest.mark.slow
@pytest.mark.row("T21")
@pytest.mark.parametrize("name", sorted(CALLED_BY_TRAIN))
def test_an_overridden_method_is_called_and_changes_nothing_by_itself(name, capsys):
    usual = made(output_dir="usual")
    usual.train()
    usual_lines = capsys.readouterr().out.splitlines()
    calls: list[str] = []
    own = made(overriding(name, calls), output_dir="own")
    own.train("usual/epoch_1" if name == "load" else None)
    assert calls
    assert same_weights(own, usual)
    lines = capsys.readouterr().out.splitlines()
    if name not in PARTS_OF_OTHERS:  # dropout: a metric of its own forward differs
        assert lines == usual_lines[-len(lines) :]


@pytest.mark.parametrize("name", sorted(CALLED_BY_USERS))
def test_methods_for_users_have_no_other_callers(name):
    source = inspect.getsource(inspect.getmodule(Trainer))
    assert re.findall(rf"self\.{name}\(", source) == []


@pytest.mark.slow
@pytest.mark.row("T21")
@pytest.mark.parametrize("strategy", ["epoch", "eval_epoch", "steps"])
def test_the_documented_bodies_work_as_overrides(strategy, capsys):
    class Documented(Trainer):
        def prepare_inputs(self, inputs):
            return send_to_device(inputs, self.configs.device)

        def set_train_mode(self, model):
            model.train()

        def compute_loss(self, model, inputs):
            self.set_train_mode(model)
            modes.append((self.evaluating, model.training))
            return self.loss(model(inputs[0]), inputs[1])

        def train_step(self, model, inputs):
            step_loss = self.compute_loss(model, inputs)
            step_loss.backward()
            step_loss = step_loss.detach()
            loss, metric = self.update_metrics(model, inputs, step_loss, training=True)
            self.optimizer.step()
            self.lr_scheduler.step()
            self.optimizer.zero_grad()
            return {"step_loss": step_loss.item(), "epoch_loss": loss, "epoch_metric": metric}

        @torch.no_grad()
        def update_metrics(self, model, inputs, step_loss, training=True):
            self.loss_metric.update(send_to_device(step_loss, self.configs.device))
            loss = self.loss_metric.compute().item()
            if self.configs.eval_strategy == "eval_epoch" and training:
                return loss, 0
            return loss, self.compute_metric(model, inputs)

        @torch.no_grad()
        def compute_metric(self, model, inputs):
            model.eval()
            self.metric.update(model(inputs[0]), inputs[1])
            return self.metric.compute().item()

        @torch.no_grad()
        def evaluate_step(self, model, inputs):
            inputs = self.prepare_inputs(inputs)
            step_loss = reduce_value(self.compute_loss(model, inputs), average=True).detach()
            loss, metric = self.update_metrics(model, inputs, step_loss, training=False)
            return {
                "eval_step_loss": step_loss.item(),
                "eval_epoch_loss": loss,
                "eval_epoch_metric": metric,
            }

        @torch.no_grad()
        def evaluate(self, model, logs):
            model.eval()
            self.callbacks.on_eval_begin(logs)
            self.metric.reset()
            for batch in self.get_eval_dataloader():
                self.callbacks.on_eval_batch_begin(batch, logs)
                inputs = send_to_device(batch, self.configs.device)
                logs.update(self.evaluate_step(model, inputs))
                self.callbacks.on_eval_batch_end(tuple(inputs), logs)
                logs["eval_global_step"] += 1
            self.callbacks.on_eval_end(logs)
            return logs

        def setup_before_train(self, num_training_steps, init_lr):
            totals.append((num_training_steps, init_lr))
            self._create_optimizer(init_lr=init_lr)
            self._create_loss()
            self._create_metric()
            self._create_scheduler(num_training_steps=num_training_steps, optimizer=self.optimizer)
            self._create_callbacks()

        def _create_metric(self):
            self.metric = get_metric_by_name(self.configs.metric)
            self.metric.to(self.configs.device)
            self.loss_metric = get_metric_by_name("MeanMetric")
            self.loss_metric.to(self.configs.device)

    class Points(Callback):
        def __init__(self):
            self.calls = []

        def on_eval_begin(self, logs):
            self.calls.append("begin")

        def on_eval_batch_end(self, batch, logs):
            self.calls.append("batch")

        def on_eval_end(self, logs):
            self.calls.append("end")

    modes, totals = [], []
    options = {"eval_strategy": strategy, "eval_steps": 2, "early_stopping": None}
    usual, own = (made(kind, output_dir=kind.__name__, **options) for kind in (Trainer, Documented))
    points = [Points(), Points()]
    for trainer, point in zip((usual, own), points, strict=True):
        trainer.add_callback(point)
        trainer.train()
    assert same_weights(usual, own)
    assert points[0].calls == points[1].calls == ["begin", "batch", "end"] * 2
    assert totals == [(4, 0.01)]
    assert {training for evaluating, training in modes if evaluating} == {False}
    assert {training for evaluating, training in modes if not evaluating} == {True}
    for name in ("eval_epoch_loss", "eval_epoch_metric", "epoch_loss", "eval_global_step"):
        assert own.logs[name] == pytest.approx(usual.logs[name], rel=1e-5)


@pytest.mark.slow
@pytest.mark.row("T21")
def test_overrides_that_change_something_change_it():
    class Own(Trainer):
        def prepare_inputs(self, inputs):
            x, y = super().prepare_inputs(inputs)
            return x * 0, y

        def set_train_mode(self, model):
            model.train()
            model[1].eval()

        def update_metrics(self, model, inputs, step_loss, training=True):
            seen.append((inputs[0].abs().sum().item(), training, torch.is_grad_enabled()))
            return 5.0, 0.5

        def get_eval_dataloader(self):
            return [tuple(data(8).tensors)] * 2

    seen: list[tuple] = []
    own = made(Own, epoch_num=1)
    own.train()
    assert own.model[1].running_mean.equal(torch.zeros(8))
    assert seen == [(0, True, False)] * 2 + [(0, False, False)] * 2
    assert (own.logs["epoch_loss"], own.logs["epoch_metric"]) == (5.0, 0.5)
    assert (own.logs["eval_epoch_loss"], own.logs["eval_epoch_metric"]) == (5.0, 0.5)


@pytest.mark.slow
def test_components_may_be_created_by_overrides():
    class Own(Trainer):
        def _create_optimizer(self, init_lr):
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=init_lr)

        def _create_loss(self):
            self.loss = nn.CrossEntropyLoss(label_smoothing=0.1)

        def _create_scheduler(self, num_training_steps, optimizer=None):
            self.lr_scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)

        def _create_callbacks(self):
            super()._create_callbacks()
            self.callbacks.add_callback(seen)

    class Seen(Callback):
        def on_train_end(self, logs):
            self.lr = logs["lr"]

    seen = Seen()
    own = made(Own, epoch_num=1)
    own.train()
    assert type(own.optimizer) is torch.optim.SGD
    assert own.loss.label_smoothing == 0.1
    assert seen.lr == pytest.approx(0.001)


@pytest.mark.parametrize("name", ["_run_train", "run_train", "_may_evaluate", "_create_logs"])
def test_methods_that_would_not_be_called_are_rejected(name):
    with pytest.raises(TypeError, match=f"Own overrides {name}, which is not called here: overrid"):
        type("Own", (Trainer,), {name: lambda self: None})


@pytest.mark.slow
def test_a_save_of_a_subclass_is_called_for_every_folder():
    class Own(Trainer):
        def save(self, path, overwrite=True):
            super().save(path, overwrite)
            (Path(path) / "mine.txt").write_text("extra")

    made(Own).train()
    names = {path.parent.name for path in Path("out").glob("*/mine.txt")}
    assert names == {"epoch_1", "epoch_2", "final_epoch"}


@pytest.mark.slow
def test_a_load_of_a_subclass_may_read_files_of_its_own():
    class Own(Trainer):
        def load(self, path):
            self.model.load_state_dict(torch.load(path, weights_only=True))
            self.epoch = 1

    made().train()
    own = made(Own, output_dir="own")
    own.train("out/epoch_1/model.pth")
    assert own.epoch == 2
    assert own.logs["global_step"] == 4


# Folders


def sizes(folder: str) -> dict[str, int]:
    return {p.name: p.stat().st_size for p in Path(folder).rglob("*") if p.is_file()}


@pytest.mark.slow
@pytest.mark.row("T08")
def test_a_folder_has_one_copy_of_the_weights_and_the_last_one_is_linked():
    wide = nn.Linear(4, 20_000)
    config = TrainingConfig(output_dir="out", print_steps=1, tensorboard=None, metric=None)
    Trainer(wide, config, data()).train()
    weights = 5 * 20_000 * 4
    for name in ("epoch_1", "epoch_2"):
        assert sum(sizes(f"out/{name}").values()) < 3.2 * weights  # the weights and two moments
        assert [n for n, s in sizes(f"out/{name}").items() if s > weights // 2] == [
            one for one in sizes(f"out/{name}") if one in ("model.pth", "state.pt")
        ]
    assert Path("out/final_epoch").is_symlink()
    assert Path("out/final_epoch").resolve() == Path("out/epoch_2").resolve()
    bare = nn.Linear(4, 20_000)
    bare.load_state_dict(torch.load("out/final_epoch/model.pth", weights_only=True))
    assert bare.weight.equal(wide.weight)


@pytest.mark.slow
def test_final_epoch_is_a_folder_where_the_end_has_other_weights():
    class Average(Callback):
        def on_train_end(self, logs):
            with torch.no_grad():
                trainer.model[0].weight.zero_()

    trainer = made()
    trainer.add_callback(Average())
    trainer.train()
    final = torch.load("out/final_epoch/model.pth", weights_only=True)
    assert final["0.weight"].abs().sum() == 0
    assert not Path("out/final_epoch").is_symlink()
    other = made(output_dir="other", epoch_num=3)
    other.train("out/final_epoch")
    assert other.epoch == 3


@pytest.mark.slow
def test_a_changed_model_file_is_detected():
    made().train()
    weights = torch.load("out/epoch_1/model.pth", weights_only=True)
    weights["0.weight"] += 1
    torch.save(weights, "out/epoch_1/model.pth")
    with pytest.raises(CheckpointError, match=r"'out/epoch_1' is damaged: 'model.safetensors' has"):
        made(output_dir="other").train("out/epoch_1")
    assert not Path("other/.resumed").exists()


@pytest.mark.slow
def test_a_folder_that_towhee_saved_is_resumed_with_its_next_epoch(capsys):
    made().train()
    Path("old").mkdir()
    for name in ("model.pth", "state.pt"):
        Path("old", name).write_bytes(Path("out/epoch_1", name).read_bytes())
    capsys.readouterr()
    again = made(output_dir="again")
    again.train("old")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("epoch=2/2, global_step=3,")
    assert again.epoch == 2
    assert again.optimizer.state_dict()["state"][0]["step"] == 4
    assert again.lr_value == pytest.approx(0.0025)


@pytest.mark.slow
def test_a_callback_may_save_at_any_moment():
    class Saving(Callback):
        def on_train_batch_end(self, batch, logs):
            if logs["global_step"] == 3:
                trainer.save("best")
                kept.append(trainer.model[0].weight.detach().clone())

    kept: list[torch.Tensor] = []
    trainer = made()
    trainer.add_callback(Saving())
    trainer.train()
    other = made(output_dir="other")
    other.load("best")
    assert other.model[0].weight.equal(kept[0])
