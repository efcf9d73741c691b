"""``stoker ckpt import``: training continues where another trainer has stopped.

The files have the layout of the other trainers; `make switchers` uses theirs.
"""

import io
import json
import zipfile
from argparse import Namespace

import h5py
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.lr_scheduler import StepLR

from stoker import Engine, Trainer, hooks
from stoker.cli import main
from stoker.core.errors import CheckpointMismatchError

X, Y = torch.randn(12, 4, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3
BATCHES = [(X[i : i + 3], Y[i : i + 3]) for i in range(0, 12, 3)]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def parts(kind="adamw", model=None):
    """Return a model, its optimizer and its scheduler."""
    model = network() if model is None else model
    if kind == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, StepLR(optimizer, 3, 0.5)


def train(model, optimizer, scheduler, epochs):
    for _ in range(epochs):
        for x, y in BATCHES:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()


def lightning(path, model, optimizer, scheduler, **more):
    progress = {"is_last_batch": True, "current": {"completed": 4}}
    saved = {
        "pytorch-lightning_version": "2.6.0",
        "epoch": 1,
        "global_step": 8,
        "state_dict": {f"net.{name}": one for name, one in model.state_dict().items()}
        | {"accuracy.tp": torch.zeros(1)},
        "loops": {"fit_loop": {"epoch_loop.batch_progress": progress}},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [scheduler.state_dict()],
        "callbacks": {},
        **more,
    }
    torch.save(saved, path / "last.ckpt")
    return path / "last.ckpt"


def huggingface(path, model, optimizer, scheduler):
    folder = path / "checkpoint-8"
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save(scheduler.state_dict(), folder / "scheduler.pt")
    (folder / "trainer_state.json").write_text(json.dumps({"epoch": 2.0, "global_step": 8}))
    (folder / "rng_state.pth").write_bytes(b"not read")
    return folder


def ignite(path, model, optimizer, scheduler):
    saved = {"model": model, "optimizer": optimizer, "lr_scheduler": scheduler}
    saved = {name: one.state_dict() for name, one in saved.items()}
    trainer = {"epoch_length": 4, "iteration": 8, "max_epochs": 4}
    torch.save({**saved, "trainer": trainer}, path / "checkpoint_8.pt")
    return path / "checkpoint_8.pt"


def plain(path, model, optimizer, scheduler):
    saved = {
        "epoch": 2,
        "step": 8,
        "model_state_dict": {f"module.{name}": one for name, one in model.state_dict().items()},
        "optimizer_state_dict": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
    }
    torch.save(saved, path / "mine.pth")
    return path / "mine.pth"


def turned(tensor):
    return tensor.permute(*reversed(range(tensor.dim()))).numpy()


def keras(path, model, optimizer, _):
    """Write the weights and moments as Keras keeps them."""
    kinds = {nn.Linear: ("Dense", {}), nn.BatchNorm1d: ("BatchNormalization", {})}
    layers = [(*kinds[type(one)], one) for one in model if type(one) in kinds]
    data, names = io.BytesIO(), iter(("dense", "batch_normalization", "dense_1"))
    with h5py.File(data, "w") as file:
        for _, _, layer in layers:
            saved = [one for one in layer.state_dict().values() if one.dim()]
            group = file.create_group(f"layers/{next(names)}/vars")
            for number, one in enumerate(saved):
                group[str(number)] = turned(one)
        lr, own = optimizer.param_groups[0]["lr"], optimizer.state_dict()["state"]
        moments = [lr]
        for one in own.values():
            if "exp_avg" in one:
                moments += [turned(one["exp_avg"]), turned(one["exp_avg_sq"])]
            else:
                moments.append(turned(one["momentum_buffer"]) * -lr)
        group = file.create_group("optimizer/vars")
        for number, one in enumerate([8, *moments]):
            group[str(number)] = one
    adam = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8, "weight_decay": 0.01}
    sgd = {"momentum": 0.9, "nesterov": False}
    is_adam = isinstance(optimizer, torch.optim.AdamW)
    kept = (
        {"class_name": "AdamW", "config": adam} if is_adam else {"class_name": "SGD", "config": sgd}
    )
    config = {
        "config": {"layers": [{"class_name": kind, "config": one} for kind, one, _ in layers]},
        "compile_config": {"optimizer": kept},
    }
    with zipfile.ZipFile(path / "m.keras", "w") as archive:
        archive.writestr("config.json", json.dumps(config))
        archive.writestr("model.weights.h5", data.getvalue())
    return path / "m.keras"


def import_(source, folder, *more):
    return main(["ckpt", "import", str(source), "-o", str(folder), *more])


def resume(kind, folder, run_dir=None, scheduled=True, epochs=4, model=None):
    model, optimizer, scheduler = parts(kind, model)
    engine = Engine(
        model, optimizer, nn.CrossEntropyLoss(), lr_scheduler=scheduler if scheduled else None
    )
    trainer = Trainer(engine, [hooks.Checkpoint("1ep")] if run_dir else [], run_dir=run_dir)
    trainer.fit(BATCHES, epochs=epochs, resume=folder)
    return trainer


def gap(model, other):
    pairs = zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("layout", [lightning, huggingface, ignite, plain, keras])
def test_training_continues_where_the_other_trainer_stopped(layout, kind, tmp_path, capsys):
    model, optimizer, scheduler = parts(kind)
    scheduled = layout is not keras
    if not scheduled:
        scheduler = None
        optimizer.param_groups[0].pop("initial_lr")
    train(model, optimizer, scheduler, 2)
    source = layout(tmp_path, model, optimizer, scheduler)
    assert import_(source, tmp_path / "imported", *([] if scheduled else ["--epoch", "2"])) == 0
    said = capsys.readouterr()
    assert "optimizer state of 6 parameters" in said.out
    assert "step 8, epoch 2" in said.out
    trainer = resume(kind, tmp_path / "imported", tmp_path / "run", scheduled)
    assert trainer.run.step == 16
    train(model, optimizer, scheduler, 2)
    if layout is keras:  # it does not count batches, and its momentum has the learning rate in it
        trainer.engine.model[1].num_batches_tracked.copy_(model[1].num_batches_tracked)
    assert gap(model, trainer.engine.model) <= (1e-5 if layout is keras else 0)


def test_the_same_command_resumes_a_run_that_was_started_from_an_import(tmp_path):
    model, *others = parts()
    train(model, *others, 2)
    import_(plain(tmp_path, model, *others), tmp_path / "imported")
    resume("adamw", tmp_path / "imported", tmp_path / "run", epochs=3)
    again = resume("adamw", tmp_path / "imported", tmp_path / "run", epochs=4)
    assert [one["epoch"] for one in again.history] == [3, 4]
    train(model, *others, 2)
    assert gap(model, again.engine.model) == 0


def test_an_imported_checkpoint_can_be_loaded_and_shown(tmp_path, capsys):
    model, *others = parts()
    train(model, *others, 2)
    import_(ignite(tmp_path, model, *others), tmp_path / "imported")
    trainer = Trainer(Engine(*parts()[:2], nn.CrossEntropyLoss()), [])
    trainer.load(tmp_path / "imported")
    assert gap(model, trainer.engine.model) == 0
    assert main(["ckpt", "show", str(tmp_path / "imported")]) == 0
    assert "imported_from Ignite" in capsys.readouterr().out


def test_hyper_parameters_that_need_classes_are_left_out_with_a_sentence(tmp_path, capsys):
    model, *others = parts()
    source = lightning(tmp_path, model, *others, hyper_parameters={"args": Namespace(lr=1)})
    assert import_(source, tmp_path / "imported") == 0
    out = capsys.readouterr().out
    assert "'hyper_parameters' (it has objects of 'argparse.Namespace', and no code" in out


def test_training_continues_with_the_trained_weights_not_with_their_average(tmp_path, capsys):
    model, *others = parts()
    train(model, *others, 2)
    average = {f"net.{name}": one * 0 for name, one in model.state_dict().items()}
    trained = {f"net.{name}": one for name, one in model.state_dict().items()}
    averaged = {"state_dict": average, "current_model_state": trained, "averaging_state": {"n": 1}}
    source = lightning(tmp_path, model, *others, **averaged)
    assert import_(source, tmp_path / "imported") == 0
    assert "averaged weights (-o FILE.safetensors imports them)" in capsys.readouterr().out
    trainer = Trainer(Engine(*parts()[:2], nn.CrossEntropyLoss()), [])
    trainer.load(tmp_path / "imported")
    assert gap(model, trainer.engine.model) == 0
    assert import_(source, tmp_path / "model.safetensors") == 0
    assert not any(one.any() for one in load_file(tmp_path / "model.safetensors").values())


class Evil:
    def __reduce__(self):
        import os

        return os.mkdir, ("made-by-the-file",)


@pytest.mark.parametrize("modern", [True, False])
def test_no_code_of_a_file_runs(modern, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    saved = {"model": network().state_dict(), "hyper_parameters": Evil()}
    torch.save(saved, "evil.pt", _use_new_zipfile_serialization=modern)
    assert import_("evil.pt", "imported") == 2
    assert not (tmp_path / "made-by-the-file").exists()
    assert "can execute arbitrary code" in capsys.readouterr().err


def test_the_middle_of_an_epoch_is_reported(tmp_path, capsys):
    model, *others = parts()
    folder = huggingface(tmp_path, model, *others)
    (folder / "trainer_state.json").write_text(json.dumps({"epoch": 1.5, "global_step": 6}))
    assert import_(folder, tmp_path / "imported") == 0
    said = capsys.readouterr()
    assert "step 6, epoch 1" in said.out
    assert "in the middle of an epoch" in said.err


def test_what_does_not_fit_is_rejected_or_reported(tmp_path, caplog):
    model, *others = parts("sgd")
    train(model, *others, 2)
    import_(plain(tmp_path, model, *others), tmp_path / "imported")
    with pytest.raises(CheckpointMismatchError, match=r"another optimizer than AdamW.*momentum"):
        resume("adamw", tmp_path / "imported")
    wide = nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 3))
    with pytest.raises(CheckpointMismatchError, match="another model or run|groups of"):
        resume("sgd", tmp_path / "imported", model=wide)
    trainer = resume("sgd", tmp_path / "imported", scheduled=False)
    assert trainer.engine.optimizer.param_groups[0]["lr"] == 0.1
    assert "SGD keeps the options of this run: lr was 0.025 and is 0.1" in caplog.text
    assert "and the engine has none: the learning rate is that of this run" in caplog.text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-o", "out.pt"], "--output must be a folder, or end in .safetensors"),
        (["-o", "w.safetensors", "--epoch", "3"], "so --epoch has no effect"),
        (["-o", "out", "--step", "-1"], "--step must be at least 0, got -1"),
        (["-o", "full"], "holds checkpoints already"),
    ],
)
def test_wrong_options_are_one_sentence(words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = str(plain(tmp_path, *parts()))
    import_(source, "full")
    capsys.readouterr()
    assert main(["ckpt", "import", source, *words]) == 2
    assert sentence in capsys.readouterr().err


def test_keras_files_that_cannot_be_ordered_or_read_are_rejected(tmp_path, capsys):
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:
        file["layers/dense/vars/0"] = torch.ones(2, 3).numpy()
        file["layers/conv2d/vars/0"] = torch.ones(3, 3, 1, 2).numpy()
    assert import_(tmp_path / "m.weights.h5", tmp_path / "out") == 2
    assert "does not say the order of its layers (conv2d, dense)" in capsys.readouterr().err
    (tmp_path / "x.keras").write_bytes(b"hello")
    assert import_(tmp_path / "x.keras", tmp_path / "out") == 2
    assert "is not a model that Keras 3 saved" in capsys.readouterr().err
