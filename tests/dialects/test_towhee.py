"""Towhee's trainer on Stoker: each row of its acceptance table, and the document's examples."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import stoker
from stoker.dialects import towhee
from stoker.dialects.towhee.models import vit
from stoker.dialects.towhee.operator import NNOperator
from stoker.dialects.towhee.operator import train as train_operator
from stoker.dialects.towhee.trainer.callback import (
    Callback,
    EarlyStoppingCallback,
    ModelCheckpointCallback,
    TensorBoardCallBack,
)
from stoker.dialects.towhee.trainer.metrics import (
    TMMetrics,
    get_metric_by_name,
    show_avaliable_metrics,
)
from stoker.dialects.towhee.trainer.modelcard import ModelCard
from stoker.dialects.towhee.trainer.trainer import Trainer
from stoker.dialects.towhee.trainer.training_config import (
    TrainingConfig,
    dump_default_yaml,
    get_config_help,
)
from stoker.dialects.towhee.trainer.utils.layer_freezer import LayerFreezer

PRINTED = (
    "TrainingConfig(output_dir='./train_dummy_operator', overwrite_output_dir=True, "
    "eval_strategy='epoch', eval_steps=None, batch_size=8, val_batch_size=-1, seed=42, "
    "epoch_num=2, dataloader_pin_memory=True, dataloader_drop_last=True, "
    "dataloader_num_workers=0, lr=5e-05, metric='Accuracy', print_steps=1, "
    "load_best_model_at_end=False, early_stopping={'monitor': 'eval_epoch_metric', "
    "'patience': 4, 'mode': 'max'}, model_checkpoint={'every_n_epoch': 1}, "
    "tensorboard={'log_dir': None, 'comment': ''}, loss='CrossEntropyLoss', optimizer='Adam', "
    "lr_scheduler_type='linear', warmup_ratio=0.0, warmup_steps=0, device_str=None, "
    "freeze_bn=False)"
)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def digits(start: int, size: int) -> TensorDataset:
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images[start : start + size] / 16, dtype=torch.float32)
    return TensorDataset(x, torch.tensor(labels[start : start + size]))


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 10)
    )


def config(**changes) -> TrainingConfig:
    usual = {"output_dir": "out", "print_steps": 1, "tensorboard": None, "lr": 0.01}
    return TrainingConfig(**{**usual, **changes})


def trainer(kind=Trainer, model=None, size=16, evals=8, **changes) -> Trainer:
    data = {"train_dataset": digits(0, size), "eval_dataset": digits(100, evals)}
    return kind(model or net(), config(**changes), **data)


def points(*names: str) -> type[Callback]:
    """A callback that notes when these points are called, and with what logs."""

    class Points(Callback):
        def __init__(self) -> None:
            self.calls: list[str] = []
            self.logs: list[dict] = []

    def made(name):
        def point(self, *arguments):
            self.calls.append(name)
            self.logs.append(dict(arguments[-1]))

        return point

    for name in names:
        setattr(Points, name, made(name))
    return Points


class Acting(Callback):
    """Does something at the end of a training batch of the given number."""

    def __init__(self, step, act) -> None:
        self.step, self.act = step, act

    def on_train_batch_end(self, batch, logs):
        if logs["global_step"] == self.step:
            self.act()


def plain_loop(kind, loss, epochs: int = 2, size: int = 16):
    """The weights and the optimizer of a loop in plain torch, at rate 0.1 falling to 0."""
    model = net()
    stoker.seed_all(42)
    optimizer = kind(model.parameters(), lr=0.1)
    loader = DataLoader(digits(0, size), batch_size=8, shuffle=True, drop_last=True)
    total = epochs * len(loader)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / total)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
            rate.step()
    return list(model.parameters()), optimizer


# The quick start


@pytest.mark.slow
@pytest.mark.row("T01")
def test_the_quick_start_prints_the_lines_of_the_document(capsys):
    trainer(size=16, evals=8, epoch_num=2).train()
    number = r"\d\.\d+(e-\d+)?"
    shapes = [
        rf"epoch=1/2, global_step=1, epoch_loss={number}, epoch_metric={number}",
        rf"epoch=1/2, global_step=2, epoch_loss={number}, epoch_metric={number}",
        rf"epoch=1/2, eval_global_step=0, eval_epoch_loss={number}, eval_epoch_metric={number}",
        rf"epoch=2/2, global_step=3, epoch_loss={number}, epoch_metric={number}",
        rf"epoch=2/2, global_step=4, epoch_loss={number}, epoch_metric={number}",
        rf"epoch=2/2, eval_global_step=1, eval_epoch_loss={number}, eval_epoch_metric={number}",
    ]
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len(lines) == len(shapes)
    assert all(re.fullmatch(shape, line) for shape, line in zip(shapes, lines, strict=True))
    assert re.search(r"\S+ \S+ - \d+ - \S+\.py-\w+:\d+ - WARNING: TrainingConfig\(output_dir", err)


@pytest.mark.slow
@pytest.mark.row("T01")
def test_lines_come_at_multiples_and_a_bar_prints_none(capsys):
    trainer(size=48, evals=40, print_steps=4, epoch_num=1).train()
    lines = capsys.readouterr().out.splitlines()
    assert [re.search(r"global_step=(\d+)", line)[1] for line in lines] == ["4", "0", "4"]
    trainer(size=16, print_steps=None, output_dir="bar").train()
    out, err = capsys.readouterr()
    assert out == ""
    assert "epoch 2/2" in err


@pytest.mark.slow
@pytest.mark.row("T02")
def test_losses_are_means_over_samples_of_their_own_pass():
    made = trainer(size=24, evals=12, epoch_num=1, lr=0.0, dataloader_drop_last=False)
    seen = points("on_train_end")()
    made.add_callback(seen)
    made.train()
    x, y = digits(100, 12).tensors
    made.model.eval()
    expected = nn.functional.cross_entropy(made.model(x), y).item()
    assert seen.logs[-1]["eval_epoch_loss"] == pytest.approx(expected, rel=1e-6)
    plain = nn.Linear(64, 10)
    made = trainer(model=plain, size=20, epoch_num=1, lr=0.0, dataloader_drop_last=False)
    seen = points("on_train_end")()
    made.add_callback(seen)
    made.train()
    x, y = digits(0, 20).tensors
    expected = nn.functional.cross_entropy(plain(x), y).item()
    assert seen.logs[-1]["epoch_loss"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.row("T03")
def test_evaluation_is_in_evaluation_mode_also_where_compute_loss_asks_for_training():
    class Old(Trainer):
        def compute_loss(self, model, inputs):
            self.set_train_mode(model)
            modes.append(model.training)
            return super().compute_loss(model, inputs)

    modes: list[bool] = []
    made = trainer(Old, epoch_num=1)
    buffers = []

    class ValidationRecord(Callback):
        def on_eval_begin(self, logs):
            buffers.append(made.model[1].running_mean.clone())

        def on_eval_end(self, logs):
            buffers.append(made.model[1].running_mean.clone())

    made.add_callback(ValidationRecord())
    made.train()
    assert modes == [True, True, False]
    assert buffers[0].equal(buffers[1])


@pytest.mark.slow
@pytest.mark.row("T04")
@pytest.mark.parametrize("metric", ["Accuracy", None])
def test_a_training_batch_goes_forward_once(metric):
    class Own(Trainer):
        def compute_loss(self, model, inputs):
            return self.loss(model(inputs[0]), inputs[1])

    for kind in (Trainer, Own):
        calls = []
        model = net()
        model.register_forward_hook(lambda *_, seen=calls: seen.append(1))
        made = trainer(kind, model, metric=metric, eval_strategy="no", output_dir=kind.__name__)
        made.train()
        assert len(calls) == 4
        assert ("epoch_metric" in made.logs) is (metric is not None)


# The config


@pytest.mark.row("T05")
def test_the_defaults_are_those_of_the_document():
    made = TrainingConfig(output_dir="./train_dummy_operator", print_steps=1)
    assert repr(made) == PRINTED
    assert TrainingConfig() == TrainingConfig(output_dir="./output_dir", print_steps=None)
    with pytest.raises(TypeError, match="epochs"):
        TrainingConfig(epochs=3)


@pytest.mark.row("T05")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": "8"}, "batch_size is '8', expected int"),
        ({"epoch_num": 0}, "epoch_num is 0, expected a number from 1"),
        ({"eval_strategy": "epochs"}, "did you mean 'epoch'"),
        ({"eval_strategy": "steps"}, "needs eval_steps"),
        ({"val_batch_size": 0}, "val_batch_size is 0"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(changes, words):
    with pytest.raises((TypeError, ValueError), match=words):
        TrainingConfig(**changes)


@pytest.mark.row("T06")
def test_a_config_survives_yaml_and_part_of_one_is_enough(tmp_path):
    whole = config(loss={"name_": "CrossEntropyLoss", "label_smoothing": 0.1}, epoch_num=7)
    whole.save_to_yaml(tmp_path / "whole.yaml")
    assert TrainingConfig().load_from_yaml(tmp_path / "whole.yaml") == whole
    part = tmp_path / "part.yaml"
    part.write_text(
        "learning:\n  lr: 5e-05\ntrain:\n  epoch_num: 3\ncallback:\n  tensorboard: no\n"
    )
    read = TrainingConfig().load_from_yaml(part)
    assert read.lr == 5e-05
    assert isinstance(read.lr, float)
    assert (read.epoch_num, read.batch_size) == (3, 8)
    dump_default_yaml(tmp_path / "default.yaml")
    assert TrainingConfig(lr=1.0).load_from_yaml(tmp_path / "default.yaml") == TrainingConfig()


@pytest.mark.row("T06")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("trian:\n  lr: 1\n", "no section 'trian'; did you mean 'train'"),
        ("train:\n  epoch_nums: 1\n", "train has no 'epoch_nums'; did you mean 'epoch_num'"),
        ("train:\n  lr: 1\n", "train has no 'lr'"),
        ("train:\n  epoch_num: many\n", "epoch_num is 'many', expected int"),
    ],
)
def test_an_unknown_section_or_key_is_an_error(tmp_path, text, words):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises((ValueError, TypeError), match=words):
        TrainingConfig().load_from_yaml(tmp_path / "c.yaml")


@pytest.mark.row("T06")
def test_keys_of_older_versions_are_accepted_where_they_have_no_effect(tmp_path, caplog):
    file = tmp_path / "old.yaml"
    file.write_text(
        "device:\n  n_gpu: -1\n  sync_bn: false\nlogging:\n  logging_dir: null\n"
        "  logging_strategy: steps\ntrain:\n  max_steps: -1\n  epoch_num: 5\n"
        "  resume_from_checkpoint: null\n"
    )
    assert TrainingConfig().load_from_yaml(path2yaml=file).epoch_num == 5
    file.write_text("train:\n  args:\n    epoch_num: 3.0\n")
    assert TrainingConfig().load_from_yaml(file) == TrainingConfig()
    assert "train.args is ignored" in caplog.text
    file.write_text("device:\n  n_gpu: 2\n")
    with pytest.raises(ValueError, match="n_gpu is 2, but Towhee dropped this key"):
        TrainingConfig().load_from_yaml(file)
    assert TrainingConfig(sync_bn=False) == TrainingConfig()
    with pytest.raises(ValueError, match="sync_bn is True"):
        TrainingConfig(sync_bn=True)


@pytest.mark.row("T06")
def test_the_help_lists_every_field(capsys):
    found = get_config_help()
    text = capsys.readouterr().out
    assert all(f"] {name} = " in text for name in TrainingConfig().to_dict())
    assert found.keys() == TrainingConfig().to_dict().keys()
    assert found["seed"] == {"category": "train", "help": "of all random numbers"}
    made = TrainingConfig(val_batch_size=2)
    assert (made.train_batch_size, made.eval_batch_size) == (8, 2)
    assert '"lr": 5e-05' in made.to_json_string()


@pytest.mark.slow
@pytest.mark.row("T07")
def test_devices_are_chosen_and_refused_early():
    assert TrainingConfig(device_str="cuda:2").device == torch.device("cuda:2")
    made = trainer(device_str=None)
    made.train()
    assert next(made.model.parameters()).device.type == "cpu"
    if not torch.cuda.is_available():
        for device in ("cuda", "cuda:2"):
            with pytest.raises((ValueError, RuntimeError), match="cuda"):
                trainer(device_str=device, output_dir=device.replace(":", "")).train()


# Saving and going on


@pytest.mark.slow
@pytest.mark.row("T08")
def test_folders_hold_weights_state_and_a_card():
    card = ModelCard(model_name="digits", model_overview="Ten digits.")
    made = Trainer(
        net(), config(output_dir="deep/er"), digits(0, 16), digits(100, 8), model_card=card
    )
    made.train()
    for name in ("epoch_1", "epoch_2", "final_epoch"):
        folder = Path("deep/er") / name
        net().load_state_dict(torch.load(folder / "model.pth", weights_only=True))
        state = torch.load(folder / "state.pt", weights_only=True)
        assert state.keys() == {
            "epoch", "optimizer_state_dict", "lr_scheduler_state_dict", "loss_value",
            "metric_value", "end_lr",
        }  # fmt: skip
        text = (folder / "README.md").read_text()
        for part in ("# digits", "Ten digits.", "Linear(in_features=64", "batch_size: 8",
                     f"loss_value: {state['loss_value']}"):  # fmt: skip
            assert part in text
    assert state["epoch"] == made.epoch == 2
    assert not Path("deep/er/checkpoints").exists()


@pytest.mark.slow
@pytest.mark.row("T09")
def test_resume_trains_what_is_left_with_moments_schedule_and_counters(capsys):
    made = trainer()
    made.train()
    capsys.readouterr()
    again = trainer()
    again.train(resume_checkpoint_path="out/epoch_1")
    lines = capsys.readouterr().out.splitlines()
    assert re.match("epoch=2/2, global_step=3,", lines[0])
    assert len(lines) == 3
    assert "eval_global_step=1" in lines[-1]
    assert again.epoch == 2
    one, other = made.optimizer.state_dict(), again.optimizer.state_dict()
    assert one["param_groups"] == other["param_groups"]
    for weight, same in zip(
        made.model.state_dict().values(), again.model.state_dict().values(), strict=True
    ):
        assert weight.equal(same)


@pytest.mark.slow
@pytest.mark.row("T10")
def test_save_and_load_restore_epoch_and_weights():
    made = trainer()
    made.train()
    made.save(path="another")
    other = trainer(output_dir="other")
    other.load(path="another")
    assert other.epoch == 2
    assert other.loss_value == made.loss_value
    for weight, same in zip(made.model.parameters(), other.model.parameters(), strict=True):
        assert weight.equal(same)
    before = sorted(Path("another").rglob("*"))
    with pytest.raises(FileExistsError, match="overwrite is False"):
        made.save(path="another", overwrite=False)
    assert sorted(Path("another").rglob("*")) == before
    with pytest.raises(stoker.CheckpointError, match="nowhere"):
        made.load("nowhere")


@pytest.mark.slow
@pytest.mark.row("T10")
def test_after_load_training_continues_from_there(capsys):
    trainer(epoch_num=1).train()
    made = trainer(epoch_num=3, output_dir="other")
    made.load("out/final_epoch")
    capsys.readouterr()
    made.train()
    assert capsys.readouterr().out.startswith("epoch=2/3, global_step=3,")


@pytest.mark.slow
@pytest.mark.row("T11")
def test_the_freezer_of_the_document_freezes_the_head():
    model = vit.create_model(image_size=32, width=32, layers=2, heads=2, classes=5)
    freezer = LayerFreezer(model)
    assert freezer.show_frozen_layers() == []
    freezer.by_names(["head"])
    assert freezer.show_frozen_layers() == ["head"]
    assert freezer.status("head") == ["frozen", "frozen"]
    head = model.head.weight.clone()
    images = TensorDataset(torch.randn(8, 3, 32, 32), torch.arange(8) % 5)
    Trainer(model, config(epoch_num=1), images).train()
    assert model.head.weight.equal(head)
    freezer.set_all(freeze=False)
    freezer.by_idx([-1])
    freezer.set_slice(-1)
    with pytest.raises(ValueError, match="did you mean 'head'"):
        freezer.by_names(["heat"])


@pytest.mark.slow
@pytest.mark.row("T11")
def test_freeze_bn_keeps_running_statistics():
    made = trainer(freeze_bn=True)
    made.train()
    assert made.model[1].running_mean.equal(torch.zeros(16))
    other = trainer(output_dir="other")
    other.train()
    assert not other.model[1].running_mean.equal(torch.zeros(16))


@pytest.mark.slow
@pytest.mark.row("T12")
def test_tensorboard_has_every_number_or_nothing_is_written(monkeypatch, capsys):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer(tensorboard={"log_dir": "logs"}).train()
    read = EventAccumulator("logs")
    read.Reload()
    assert {"lr", "step_loss", "epoch_loss", "epoch_metric", "eval_epoch_loss",
            "eval_epoch_metric"} <= set(read.Tags()["scalars"])  # fmt: skip
    assert [one.step for one in read.Scalars("step_loss")] == [1, 2, 3, 4]
    rates = [one.value for one in read.Scalars("lr")]
    assert rates == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
    trainer(tensorboard={"log_dir": None, "comment": "-x"}, output_dir="named").train()
    assert list(Path("runs/named-x").iterdir())
    for number, nothing in enumerate((None, "no", False)):
        trainer(tensorboard=nothing, output_dir=f"none{number}").train()
    assert {p.name for p in Path().iterdir() if p.is_dir()} == {
        "logs", "out", "runs", "named", "none0", "none1", "none2",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.row("T12")
def test_without_the_package_the_config_leaves_it_out_and_a_callback_fails(monkeypatch, caplog):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    trainer(tensorboard={"log_dir": "logs"}).train()
    assert caplog.text.count("nothing is written for TensorBoard") == 1
    made = trainer(output_dir="other")
    made.add_callback(TensorBoardCallBack(log_dir="logs"))
    with pytest.raises(ImportError, match="tensorboard"):
        made.train()


# Callbacks


@pytest.mark.slow
@pytest.mark.row("T13")
def test_the_callback_of_the_document_prints_at_every_batch(capsys):
    class CustomCallback(Callback):
        def on_batch_begin(self, batch, logs) -> None:
            print("on_batch_begin")

    made = trainer()
    made.train()
    capsys.readouterr()
    made.add_callback(CustomCallback())
    made.train(resume_checkpoint_path="out/epoch_1")
    lines = [line.split(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["on_batch_begin", "epoch=2/2"] * 3


@pytest.mark.slow
@pytest.mark.row("T13")
def test_points_come_in_the_golden_order():
    names = (
        "on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_eval_begin",
        "on_eval_end", "on_train_batch_begin", "on_train_batch_end", "on_eval_batch_begin",
        "on_eval_batch_end",
    )  # fmt: skip
    seen = points(*names)()
    made = trainer()
    made.add_callback(seen)
    made.train()
    epoch = [
        "on_epoch_begin",
        *["on_train_batch_begin", "on_train_batch_end"] * 2,
        *["on_eval_begin", "on_eval_batch_begin", "on_eval_batch_end", "on_eval_end"],
        "on_epoch_end",
    ]
    assert seen.calls == ["on_train_begin", *epoch * 2, "on_train_end"]
    assert seen.logs[-1].keys() == {
        "global_step", "epoch", "eval_global_step", "lr", "step_loss", "epoch_loss",
        "epoch_metric", "eval_step_loss", "eval_epoch_loss", "eval_epoch_metric",
    }  # fmt: skip
    assert (seen.logs[-1]["global_step"], seen.logs[-1]["eval_global_step"]) == (4, 2)
    assert [logs["epoch"] for logs in seen.logs][1] == 1


@pytest.mark.row("T13")
def test_batches_reach_callbacks_as_they_are_and_a_singleton_is_one():
    class Batches(Callback):
        def __init__(self):
            self.batches = []

        def on_batch_end(self, batch, logs):
            self.batches.append(batch)

    class Own(Trainer):
        def compute_loss(self, model, inputs):
            return model(inputs["x"]).square().mean()

    loader = [{"x": torch.randn(4, 64)}]
    made = Own(net(), config(metric=None, epoch_num=1), train_dataloader=loader)
    first, second = Batches(), Batches()
    made.add_callback(first)
    made.add_callback(second, singleton=True)
    assert list(made.callbacks) == [second]
    made.add_callback(first, singleton=False)
    assert len(made.callbacks) == 2
    made.add_callback(second)
    assert list(made.callbacks) == [second]
    made.train()
    assert second.batches == loader
    with pytest.raises(TypeError, match="no Callback"):
        made.add_callback(Batches)


@pytest.mark.slow
@pytest.mark.row("T13")
def test_user_callbacks_run_before_the_built_in_ones(capsys):
    class First(Callback):
        def on_train_batch_end(self, batch, logs):
            print("first")

    made = trainer(epoch_num=1, eval_strategy="no")
    made.add_callback(First())
    made.train()
    assert [line[:5] for line in capsys.readouterr().out.splitlines()] == ["first", "epoch"] * 2


@pytest.mark.slow
@pytest.mark.row("T14")
@pytest.mark.parametrize(
    ("options", "epochs"),
    [
        ({"patience": 2}, 3),
        ({"patience": 1}, 2),
        ({"patience": 2, "min_delta": 1.0, "mode": "min"}, 3),
        ({"patience": 2, "baseline": 9.0}, 2),
    ],
)
def test_early_stopping_counts_evaluations_without_improvement(options, epochs):
    stopping = {"monitor": "eval_epoch_metric", "mode": "max", **options}

    class Zero(Trainer):
        def evaluate_step(self, model, inputs):
            return {"eval_epoch_loss": 1.0, "eval_epoch_metric": 0.0}

    made = trainer(Zero, epoch_num=9, early_stopping=stopping)
    made.train()
    assert made.epoch == epochs
    assert Path(f"out/epoch_{epochs}").exists()


@pytest.mark.slow
@pytest.mark.row("T14")
def test_an_unknown_monitor_is_an_error_after_the_first_evaluation():
    made = trainer(early_stopping={"monitor": "eval_epoch_metrics", "patience": 1})
    with pytest.raises(ValueError, match="did you mean 'eval_epoch_metric'"):
        made.train()
    with pytest.raises(TypeError, match="EarlyStoppingCallback does not take"):
        trainer(early_stopping={"monitor": "eval_epoch_loss", "patienc": 1}).train()


@pytest.mark.slow
@pytest.mark.row("T14")
def test_counters_survive_resume():
    class Zero(Trainer):
        def evaluate_step(self, model, inputs):
            return {"eval_epoch_metric": 0.0}

    stopping = {"monitor": "eval_epoch_metric", "patience": 3, "mode": "max"}
    trainer(Zero, epoch_num=9, early_stopping=stopping).train()
    again = trainer(Zero, epoch_num=9, early_stopping=stopping)
    again.train("out/epoch_2")
    assert again.epoch == 4


@pytest.mark.slow
@pytest.mark.row("T14")
def test_built_in_callbacks_may_be_added_by_hand():
    made = trainer(epoch_num=6, lr=0.0, early_stopping=None, model_checkpoint=None)
    control = made.trainercontrol
    made.add_callback(EarlyStoppingCallback(control, "epoch_loss", 10.0, 2, "min", None))
    made.add_callback(ModelCheckpointCallback(control, "snaps", every_n_epoch=2))
    made.train()
    assert made.epoch == 3
    assert sorted(p.name for p in Path("out/snaps").iterdir()) == ["epoch_2", "epoch_3"]


@pytest.mark.slow
@pytest.mark.row("T15")
@pytest.mark.parametrize(
    ("saving", "names"),
    [
        ({"every_n_epoch": 2}, {"epoch_2", "epoch_3", "final_epoch"}),
        ({"every_n_iteration": 3}, {"iteration_3", "epoch_3", "final_epoch"}),
        (None, {"final_epoch"}),
        ("no", {"final_epoch"}),
    ],
)
def test_saves_come_at_exact_multiples_of_training_batches(saving, names):
    trainer(epoch_num=3, evals=24, model_checkpoint=saving).train()
    assert {path.name for path in Path("out").iterdir()} == names


@pytest.mark.row("T15")
def test_a_period_is_in_epochs_or_in_iterations_and_not_both():
    with pytest.raises(ValueError, match="not both"):
        trainer(model_checkpoint={"every_n_epoch": 1, "every_n_iteration": 2}).train()


@pytest.mark.slow
@pytest.mark.row("T16")
def test_each_flag_does_what_it_says(capsys):
    made = trainer(size=32, epoch_num=2, print_steps=100, eval_strategy="no", model_checkpoint=None)
    control = made.trainercontrol
    seen = points("on_eval_end", "on_train_batch_end", "on_epoch_end")()
    made.add_callback(seen)
    for step, flag in enumerate(
        ("should_log", "should_evaluate", "should_save", "should_epoch_stop"), start=1
    ):
        act = Acting(step, lambda flag=flag: setattr(control, flag, True))
        made.add_callback(act, singleton=False)
    made.add_callback(
        Acting(6, lambda: setattr(control, "should_training_stop", True)), singleton=False
    )
    made.train()
    assert [line.split(",")[1] for line in capsys.readouterr().out.splitlines()] == [
        " global_step=1", " eval_global_step=0",
    ]  # fmt: skip
    batch, evaluated = "on_train_batch_end", "on_eval_end"
    assert seen.calls == [batch, batch, evaluated, batch, batch, "on_epoch_end", batch, batch,
                          "on_epoch_end"]  # fmt: skip
    assert Path("out/iteration_3").exists()


@pytest.mark.slow
@pytest.mark.row("T16")
def test_an_evaluation_can_be_requested_at_the_end_of_an_epoch():
    made = trainer(eval_strategy="no", epoch_num=2)

    class Ask(Callback):
        def on_epoch_end(self, epochs, logs):
            made.trainercontrol.should_evaluate = epochs == 1

    seen = points("on_epoch_begin", "on_eval_end", "on_epoch_end")()
    made.add_callback(seen)
    made.add_callback(Ask())
    made.train()
    assert seen.calls == ["on_epoch_begin", "on_epoch_end", "on_eval_end", "on_epoch_begin",
                          "on_epoch_end"]  # fmt: skip


# Metrics, optimizers, losses, schedules


def inputs_of(name: str) -> tuple:
    """Outputs and targets that a metric of this name accepts."""
    torch.manual_seed(0)
    if name in ("MeanSquaredError", "MeanAbsoluteError", "R2Score", "PearsonCorrcoef", "SNR"):
        return torch.randn(8), torch.randn(8)
    if name in ("PSNR", "SSIM"):
        return torch.rand(2, 3, 16, 16), torch.rand(2, 3, 16, 16)
    if name in ("MeanMetric", "SumMetric", "MaxMetric", "MinMetric", "CatMetric"):
        return (torch.randn(8),)
    return torch.randn(32, 4).softmax(1), torch.arange(32) % 4


@pytest.mark.slow
@pytest.mark.row("T17")
def test_every_listed_name_is_a_metric_by_its_old_and_new_name():
    names = TMMetrics.get_tm_avaliable_metrics()
    assert len(names) == len(set(names)) > 100
    for name in names:
        TMMetrics(name)
    assert show_avaliable_metrics() == {"TMMetrics": {"impl": "pytorch", "names": names}}
    for name in ("Accuracy", "F1", "F1Score", "IoU", "PSNR", "SSIM", "MeanSquaredError", "AUROC",
                 "BinnedAveragePrecision", "Hinge", "R2Score", "PearsonCorrcoef", "SNR",
                 "MeanMetric", "CatMetric", "MatthewsCorrcoef", "Precision"):  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torchmetrics, of names that move
            metric = get_metric_by_name(name)
            metric.to("cpu")
            metric.update(*inputs_of(name))
            value = metric.compute()
        assert torch.is_tensor(value), name
        assert torch.isfinite(value).all(), name


@pytest.mark.row("T17")
def test_an_unknown_metric_lists_close_names():
    with pytest.raises(ValueError, match="did you mean 'Accuracy'"):
        trainer(metric="Acuracy").train()
    with pytest.raises(ValueError, match="TMMetrics"):
        get_metric_by_name("Accuracy", "others")


@pytest.mark.row("T17")
def test_accuracy_distinguishes_binary_probabilities_from_logits():
    targets = torch.tensor([1, 1, 0, 0])
    for outputs in (torch.tensor([0.9, 0.3, 0.2, 0.4]), torch.tensor([2.0, -1.0, -3.0, -0.1])):
        metric = TMMetrics("Accuracy")
        metric.update(outputs, targets)
        assert metric.compute().item() == 0.75


@pytest.mark.slow
@pytest.mark.row("T17")
@pytest.mark.parametrize("name", ["F1", "Precision", "AUROC", "BinnedAveragePrecision", "Hinge"])
def test_a_metric_learns_its_task_and_classes_from_the_batch(name):
    made = trainer(metric=name, epoch_num=1, size=64, batch_size=32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchmetrics, of classes without samples
        made.train()
    assert isinstance(made.logs["epoch_metric"], float)


@pytest.mark.slow
@pytest.mark.row("T17")
def test_the_listing_never_fails_without_the_library_or_without_some_of_its_metrics(monkeypatch):
    import torchmetrics

    with monkeypatch.context() as patch:
        patch.delattr(torchmetrics, "JaccardIndex")
        patch.delattr("torchmetrics.classification.JaccardIndex")
        names = TMMetrics.get_tm_avaliable_metrics()
        assert "IoU" not in names
        assert "F1" in names
    monkeypatch.setitem(__import__("sys").modules, "torchmetrics", None)
    assert TMMetrics.get_tm_avaliable_metrics() == ["Accuracy", "accuracy"]
    with pytest.raises(ImportError, match="torchmetrics cannot be imported"):
        TMMetrics("Recall")
    trainer().train()


@pytest.mark.slow
@pytest.mark.row("T18")
def test_a_custom_optimizer_and_loss_are_used():
    class MyOptimizer(torch.optim.SGD):
        steps = 0

        def step(self, closure=None):
            MyOptimizer.steps += 1
            return super().step(closure)

    class MyLoss(nn.Module):
        calls = 0

        def forward(self, outputs, labels):
            MyLoss.calls += 1
            return nn.functional.cross_entropy(outputs, labels) * 2

    made = trainer(eval_strategy="no")
    made.set_optimizer(MyOptimizer(made.model.parameters(), lr=0.1), optimizer_name="mine")
    made.set_loss(MyLoss())
    assert type(made.optimizer) is MyOptimizer
    assert type(made.loss) is MyLoss
    assert (made.configs.optimizer, made.configs.loss) == ("mine", "custom_")
    made.train()
    assert (type(made.optimizer), type(made.loss)) == (MyOptimizer, MyLoss)
    assert MyOptimizer.steps == MyLoss.calls == 4
    plain, optimizer = plain_loop(MyOptimizer, MyLoss())
    assert all(a.equal(b) for a, b in zip(made.model.parameters(), plain, strict=True))
    assert made.optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.0
    made.configs = config(epoch_num=3)
    made.train()
    assert (type(made.optimizer), type(made.loss)) == (MyOptimizer, MyLoss)
    text = Path("out/epoch_2/README.md").read_text()
    assert "optimizer: 'mine'" in text
    assert "loss: 'MyLoss'" in text


@pytest.mark.row("T18")
def test_the_optimizer_of_the_document_can_be_set_and_is_refused_with_a_clear_error():
    class MyOptimizer(torch.optim.Optimizer):
        def step(self, closure):
            print("my step...")

    made = trainer()
    made.set_optimizer(MyOptimizer(made.model.parameters(), defaults={}))
    assert type(made.optimizer) is MyOptimizer
    with pytest.raises(ValueError, match="MyOptimizer has no 'lr'"):
        made.train()
    with pytest.raises(TypeError, match="expected an optimizer"):
        made.set_optimizer("Adam")
    with pytest.raises(TypeError, match="expected a loss function"):
        made.set_loss(3)


SCHEDULES = [
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup",
    {"name_": "StepLR", "step_size": 2, "gamma": 0.5}, {"name_": "polynomial", "power": 2.0},
    {"name_": "cosine_with_restarts", "num_cycles": 2},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.row("T19")
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_rate_of_the_first_step_is_that_of_the_config(schedule):
    seen = points("on_train_batch_end")()
    made = trainer(
        lr_scheduler_type=schedule,
        optimizer={"name_": "AdamW", "weight_decay": 0.1},
        loss={"name_": "CrossEntropyLoss", "label_smoothing": 0.1},
    )
    made.add_callback(seen)
    made.train()
    assert seen.logs[0]["lr"] == pytest.approx(0.01)
    assert made.optimizer.param_groups[0]["weight_decay"] == 0.1
    assert made.loss.label_smoothing == 0.1


@pytest.mark.row("T19")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": "Adma"}, "did you mean"),
        ({"loss": "CrossEntropyLos"}, "did you mean 'CrossEntropyLoss'"),
        ({"lr_scheduler_type": "linaer"}, "did you mean 'linear'"),
        ({"loss": {"name": "CrossEntropyLoss"}}, "no 'name_'"),
    ],
)
def test_names_that_are_not_known_are_refused(changes, words):
    with pytest.raises((ValueError, KeyError), match=words):
        trainer(**changes).train()
    assert not Path("out").exists()


@pytest.mark.slow
@pytest.mark.row("T19")
@pytest.mark.parametrize("schedule", ["constant", {"name_": "StepLR", "step_size": 9}], ids=str)
def test_a_warm_up_that_a_schedule_does_not_have_is_reported(schedule, caplog):
    seen = points("on_train_batch_end")()
    made = trainer(lr_scheduler_type=schedule, warmup_ratio=0.5)
    made.add_callback(seen)
    made.train()
    assert "has no warm-up" in caplog.text
    assert [logs["lr"] for logs in seen.logs] == [0.01] * 4


@pytest.mark.slow
@pytest.mark.row("T20")
def test_the_horizon_is_the_updates_and_warm_up_by_steps_wins():
    seen = points("on_train_batch_end")()
    made = trainer()
    made.add_callback(seen)
    made.train()
    assert [logs["lr"] for logs in seen.logs] == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
    assert made.optimizer.param_groups[0]["lr"] == 0.0
    seen = points("on_train_batch_end")()
    made = trainer(warmup_steps=1, warmup_ratio=0.75, output_dir="warm")
    made.add_callback(seen)
    made.train()
    assert seen.logs[1]["lr"] == pytest.approx(0.01)


# Overriding


@pytest.mark.slow
@pytest.mark.row("T21")
def test_what_train_step_returns_is_printed_and_missing_keys_are_tolerated(capsys):
    class SubTrainer1(Trainer):
        def train_step(self, model, inputs) -> dict:
            self.optimizer.zero_grad()
            loss = self.loss(model(inputs[0]), inputs[1])
            loss.backward()
            self.optimizer.step()
            self.lr_scheduler.step()
            losses.append(loss.item())
            return {"step_loss": loss.item(), "epoch_loss": loss.detach(), "epoch_metric": 7.0}

    losses: list[float] = []
    made = trainer(SubTrainer1, eval_strategy="no")
    made.train()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"epoch=1/2, global_step=1, epoch_loss={losses[0]}, epoch_metric=7.0"
    assert made.optimizer.param_groups[0]["lr"] == 0.0
    same = trainer(output_dir="same", eval_strategy="no")
    same.train()
    for one, other in zip(made.model.parameters(), same.model.parameters(), strict=True):
        assert one.equal(other)

    class Silent(SubTrainer1):
        def train_step(self, model, inputs):
            super().train_step(model, inputs)
            return {}

    capsys.readouterr()
    trainer(Silent, output_dir="silent", eval_strategy="no").train()
    assert capsys.readouterr().out.splitlines()[0] == "epoch=1/2, global_step=1"


@pytest.mark.slow
@pytest.mark.row("T21")
def test_train_step_may_call_the_one_it_overrides(capsys):
    class Doubled(Trainer):
        def train_step(self, model, inputs):
            return super().train_step(model, [inputs[0], inputs[1]]) | {"extra": 1}

        def evaluate_step(self, model, inputs):
            return super().evaluate_step(model, inputs)

    one, other = trainer(Doubled), trainer(output_dir="other")
    one.train()
    first = capsys.readouterr().out
    other.train()
    assert capsys.readouterr().out == first
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert a.equal(b)
    assert one.logs["extra"] == 1


@pytest.mark.slow
@pytest.mark.row("T21")
def test_a_custom_step_may_update_metrics(capsys):
    class Own(Trainer):
        def train_step(self, model, inputs):
            self.optimizer.zero_grad()
            loss = self.compute_loss(model, inputs)
            loss.backward()
            self.optimizer.step()
            self.lr_scheduler.step()
            epoch_loss, metric = self.update_metrics(model, inputs, loss, training=True)
            return {"step_loss": loss, "epoch_loss": epoch_loss, "epoch_metric": metric}

    trainer(Own, model=nn.Linear(64, 10)).train()
    line = capsys.readouterr().out.splitlines()[1]
    assert re.fullmatch(r"epoch=1/2, global_step=2, epoch_loss=\d\.\d+, epoch_metric=0\.\d+", line)


@pytest.mark.row("T21")
def test_compute_loss_may_take_three_inputs_where_there_is_no_metric():
    class SubTrainer2(Trainer):
        def compute_loss(self, model, inputs):
            input1, input2, input3 = inputs
            return nn.functional.mse_loss(model(input1) * model(input2), input3)

    x, z, y = torch.randn(16, 4), torch.randn(16, 4), torch.randn(16, 2)
    data = TensorDataset(x, z, y)
    model = nn.Linear(4, 2)
    before = model.weight.clone()
    made = SubTrainer2(model, config(metric=None), data, data)
    made.train()
    assert not model.weight.equal(before)
    assert "eval_epoch_loss" in made.logs


@pytest.mark.slow
@pytest.mark.row("T21")
def test_compute_metric_may_be_overridden(capsys):
    class Own(Trainer):
        def compute_metric(self, model, inputs):
            assert not model.training
            return 0.25 + super().compute_metric(model, inputs) * 0

    trainer(Own, epoch_num=1).train()
    assert all("metric=0.25" in line for line in capsys.readouterr().out.splitlines())


@pytest.mark.slow
def test_evaluate_may_be_overridden_completely_or_around_the_usual_one(capsys):
    class Whole(Trainer):
        def evaluate(self, model, logs):
            assert not model.training
            logs["eval_epoch_metric"] = 0.5
            return logs

    class Around(Trainer):
        def evaluate(self, model, logs):
            logs = super().evaluate(model, logs)
            seen.append(logs["eval_epoch_loss"])
            return logs

    seen: list[float] = []
    whole = trainer(Whole, epoch_num=5, early_stopping=None)
    whole.train()
    assert whole.logs["eval_epoch_metric"] == 0.5
    around = trainer(Around, output_dir="around")
    around.train()
    usual = trainer(output_dir="usual")
    ends = points("on_eval_end")()
    usual.add_callback(ends)
    usual.train()
    assert seen == [logs["eval_epoch_loss"] for logs in ends.logs]
    result = usual.evaluate(usual.model, {})
    assert result["eval_epoch_loss"] == seen[-1]
    other = net()
    result = usual.evaluate(other, {"epoch": 7, "eval_global_step": 3})
    x, y = digits(100, 8).tensors
    expected = nn.functional.cross_entropy(other.eval()(x), y).item()
    assert result["eval_epoch_loss"] == pytest.approx(expected, rel=1e-6)
    assert (result["eval_global_step"], usual.logs["epoch"]) == (4, 2)


# Data and moments


@pytest.mark.slow
@pytest.mark.row("T22")
def test_loaders_may_be_given_and_need_no_length():
    loader = DataLoader(digits(0, 16), batch_size=4)
    made = Trainer(net(), config(), train_dataloader=loader)
    made.train()
    assert made.logs["global_step"] == 8

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(digits(0, 16))

    stream = DataLoader(Stream(), batch_size=4)
    made = Trainer(
        net(),
        config(lr_scheduler_type="constant", output_dir="b"),
        train_dataloader=Unsized(stream),
    )
    made.train()
    assert made.logs["global_step"] == 8
    with pytest.raises(ValueError, match="has no length, which 'linear' needs"):
        Trainer(net(), config(output_dir="c"), train_dataloader=Unsized(stream)).train()


class Unsized:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


@pytest.mark.slow
@pytest.mark.row("T23")
def test_drop_last_is_for_training_and_evaluation_sees_every_sample():
    sizes: dict[bool, list[int]] = {True: [], False: []}
    made = trainer(size=20, evals=11, epoch_num=1)
    made.model.register_forward_hook(lambda m, i, o: sizes[m.training].append(len(o)))
    made.train()
    assert sizes == {True: [8, 8], False: [8, 3]}
    with pytest.raises(ValueError, match="no batches"):
        trainer(size=5, output_dir="small").train()
    trainer(size=5, output_dir="one", dataloader_drop_last=False).train()


@pytest.mark.slow
@pytest.mark.row("T24")
@pytest.mark.parametrize(
    ("changes", "moments"),
    [
        ({"eval_strategy": "no"}, []),
        ({"eval_strategy": "epoch"}, [3, 6]),
        ({"eval_strategy": "eval_epoch"}, [3, 6]),
        ({"eval_strategy": "steps", "eval_steps": 2}, [2, 4, 6]),
        ({"eval_strategy": "step", "eval_steps": 3}, [3, 6]),
    ],
)
def test_evaluation_comes_at_the_stated_moments(changes, moments):
    seen = points("on_eval_begin", "on_train_end")()
    made = trainer(size=24, **changes)
    made.add_callback(seen)
    made.train()
    assert [logs["global_step"] for logs in seen.logs[:-1]] == moments
    trains = changes["eval_strategy"] != "eval_epoch"
    assert ("epoch_metric" in seen.logs[-1]) is trains


@pytest.mark.slow
@pytest.mark.row("T25")
@pytest.mark.parametrize("stopping", [None, {"monitor": "eval_epoch_loss", "mode": "min"}])
def test_the_best_weights_are_left_in_the_model_and_in_final_epoch(stopping):
    kept: list[torch.Tensor] = []
    made = trainer(epoch_num=3, load_best_model_at_end=True, early_stopping=stopping and {
        **stopping, "patience": 9})  # fmt: skip

    class Worse(Callback):
        def on_eval_begin(self, logs):
            kept.append(made.model[0].weight.detach().clone())

    class Own(Trainer):
        def evaluate_step(self, model, inputs):
            n = len(kept)
            return {
                "eval_epoch_loss": [3.0, 1.0, 2.0][n - 1],
                "eval_epoch_metric": [1, 3, 2][n - 1],
            }

    made.__class__ = Own
    made.add_callback(Worse())
    made.train()
    assert made.model[0].weight.equal(kept[1])
    saved = torch.load("out/final_epoch/model.pth", weights_only=True)
    assert saved["0.weight"].equal(kept[1])
    assert not kept[1].equal(kept[2])


@pytest.mark.slow
@pytest.mark.row("T26")
def test_anything_with_a_model_is_trained_by_one_call(capsys):
    class Plain:
        def __init__(self):
            self._model = net()

    op = Plain()
    train_operator(op, config(), digits(0, 16), digits(100, 8))
    assert capsys.readouterr().out.count("epoch=") == 6
    first = op._trainer
    train_operator(op, config(epoch_num=3))
    assert op._trainer is first
    assert capsys.readouterr().out.splitlines()[0].startswith("epoch=3/3, global_step=5,")
    assert "going on" not in capsys.readouterr().err
    with pytest.raises(TypeError, match="no 'model' to train"):
        train_operator(object(), config())


@pytest.mark.slow
@pytest.mark.row("T26")
def test_a_second_call_trains_further_as_one_longer_training_would():
    class Embedding(NNOperator):
        def __init__(self, framework="pytorch"):
            super().__init__(framework=framework)
            self.model = nn.Linear(64, 10)

    def made():
        torch.manual_seed(0)
        return Embedding()

    once, twice = made(), made()
    loader = [tuple(digits(i * 8, 8).tensors) for i in range(2)]
    rate = config(lr_scheduler_type="constant", epoch_num=3, output_dir="once")
    once.train(rate, train_dataloader=loader)
    first = config(lr_scheduler_type="constant", epoch_num=1, output_dir="twice")
    twice.train(first, train_dataloader=loader)
    trainer_of_the_first_call, after_one = twice.trainer, twice.model.weight.clone()
    twice.train(first)
    assert twice.model.weight.equal(after_one)
    twice.train(config(lr_scheduler_type="constant", epoch_num=3, output_dir="twice"))
    assert twice.trainer is trainer_of_the_first_call
    assert twice.trainer.epoch == 3
    assert twice.model.weight.equal(once.model.weight)
    assert twice.trainer.optimizer.state_dict()["state"][0]["step"] == 6
    assert twice.framework == "pytorch"
    with pytest.raises(ValueError, match="framework is 'tensorflow'"):
        Embedding("tensorflow")


@pytest.mark.slow
@pytest.mark.row("T26")
def test_an_operator_of_the_documented_shape_trains_saves_and_loads():
    class Embedding(NNOperator):
        def __init__(self, num_classes):
            self.model = nn.Linear(64, num_classes)

        def __call__(self, images):
            return self.model(images)

    op = Embedding(10)
    before = op.model.weight.clone()
    op.train(
        config(batch_size=8, epoch_num=2), train_dataset=digits(0, 16), eval_dataset=digits(0, 8)
    )
    assert not op.model.weight.equal(before)
    assert op.trainer.epoch == 2
    assert op.setup_trainer(eval_dataset=digits(0, 4)) is op.trainer
    op.save("saved")
    with pytest.raises(FileExistsError):
        op.save("saved", overwrite=False)
    other = Embedding(10)
    other.load("saved")
    assert other.model.weight.equal(op.model.weight)
    assert other.trainer.epoch == 2


def test_timm_operators_say_what_they_need():
    described = towhee.ops.image_embedding.timm(model_name="resnet18", num_classes=10)
    try:
        import timm  # noqa: F401
    except (ImportError, RuntimeError):
        with pytest.raises(ImportError, match="pip install timm"):
            described.get_op()
    with pytest.raises(AttributeError, match="no operator family 'text_embedding'"):
        towhee.ops.text_embedding.transformers


def test_vits_are_made_by_name():
    assert [name for name, _ in vit.create_model(layers=1).named_children()][-1] == "head"
    with pytest.raises(ValueError, match="did you mean 'vit_tiny_16x224'"):
        vit.create_model("vit_tini_16x224")


def test_a_model_is_needed_and_a_config_is_not(caplog):
    with pytest.raises(RuntimeError, match="needs a model"):
        Trainer()
    made = Trainer(net(), train_dataset=digits(0, 16))
    assert made.configs.output_dir == "tmp_trainer"
    assert "tmp_trainer" in caplog.text


@pytest.mark.slow
def test_predict_is_in_evaluation_mode_without_gradients():
    made = trainer()
    made.train()
    x = digits(0, 4).tensors[0]
    one, other = made.predict(x), made.predict(x)
    assert one.equal(other)
    assert not one.requires_grad
    assert made.prepare_inputs([x])[0].equal(x)


@pytest.mark.slow
def test_weights_are_those_of_the_plain_loop():
    made = trainer(size=32, metric="Accuracy", epoch_num=2)
    made.train()
    model = net()
    stoker.seed_all(42)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 8)
    loader = DataLoader(digits(0, 32), batch_size=8, shuffle=True, drop_last=True)
    model.train()
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            rate.step()
    for one, other in zip(made.model.parameters(), model.parameters(), strict=True):
        assert one.equal(other)


@pytest.mark.slow
def test_another_run_is_replaced_only_where_that_is_allowed():
    trainer().train()
    trainer(epoch_num=1).train()
    with pytest.raises(FileExistsError, match="overwrite_output_dir is False"):
        trainer(overwrite_output_dir=False).train()


@pytest.mark.slow
def test_a_second_call_trains_nothing_more_and_one_with_more_epochs_continues(capsys):
    made = trainer()
    made.train()
    written = Path("out/final_epoch/README.md").stat().st_mtime_ns
    capsys.readouterr()
    made.train()
    assert capsys.readouterr().out == ""
    assert Path("out/final_epoch/README.md").stat().st_mtime_ns == written
    made.configs = config(epoch_num=4)
    made.train()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("epoch=3/4, global_step=5,")
    assert "eval_global_step=2" in lines[2]
    assert made.lr_value == pytest.approx(0.01 / 8)
