import csv
import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from stoker.cli import main


@pytest.fixture
def stoker(folder, capsys):
    """Runs a command; its exit code, what it printed, and what it complained about."""

    def stoker(*argv):
        try:
            code = main([str(word) for word in argv])
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        return code, said.out, said.err

    return stoker


def everything_in(folder):
    return {
        path.relative_to(folder) for path in folder.rglob("*") if "__pycache__" not in str(path)
    }


# train


@pytest.mark.slow
def test_train_trains_and_leaves_a_run_folder(stoker, folder):
    code, out, _ = stoker("train", "cfg.yaml", "run.epochs=1")
    assert code == 0
    made = {path.name for path in (folder / "runs" / "cfg").iterdir()}
    assert {"config.yaml", "env.json", "metrics.jsonl", "log.txt", "model.safetensors"} <= made
    assert "runs/cfg" in out
    assert "stoker evaluate cfg.yaml" in out
    assert not list(folder.rglob("*.partial"))


@pytest.mark.slow
@pytest.mark.row("T12")
def test_no_tensorboard_is_written_unless_a_hook_asks_for_it(stoker, folder):
    assert stoker("train", "cfg.yaml", "run.epochs=1")[0] == 0
    assert not (folder / "runs" / "cfg" / "tb").exists()
    hook = "+hooks={type: Write, _args_: [{_target_: stoker.events.TensorBoard}]}"
    code, _, err = stoker("train", "cfg.yaml", "run.epochs=1", "run.name=tb", hook)
    assert code == 0, err
    assert list((folder / "runs" / "tb" / "tb").iterdir())


@pytest.mark.slow
@pytest.mark.row("L23")
def test_a_fast_dev_run_writes_nothing(stoker, folder):
    before = everything_in(folder)
    code, out, _ = stoker("train", "cfg.yaml", "--fast-dev-run")
    assert code == 0
    assert "nothing was written" in out
    assert everything_in(folder) == before


@pytest.mark.slow
@pytest.mark.row("L23")
def test_eval_only_is_evaluate(stoker, folder):
    stoker("train", "cfg.yaml")
    before = everything_in(folder)
    first = stoker("train", "cfg.yaml", "--eval-only")
    assert first[:2] == stoker("evaluate", "cfg.yaml")[:2]
    assert first[1].startswith("val/loss ")
    assert everything_in(folder) == before


def test_an_error_of_the_code_that_runs_comes_through(stoker, folder):
    with pytest.raises(RuntimeError):
        stoker("train", "cfg.yaml", "model={_target_: torch.nn.Linear, _args_: [5, 3]}")


def test_an_error_while_parts_are_made_is_one_line(stoker):
    code, out, err = stoker("train", "cfg.yaml", "model.width=-3")
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "model" in err


@pytest.mark.slow
def test_the_metrics_of_a_run_are_those_of_evaluate(stoker, folder):
    stoker("train", "cfg.yaml")
    rows = [json.loads(row) for row in (folder / "runs/cfg/metrics.jsonl").read_text().splitlines()]
    last = [row["val/loss"] for row in rows if "val/loss" in row][-1]
    code, out, err = stoker("evaluate", "cfg.yaml")
    assert code == 0
    assert float(out.split()[1]) == pytest.approx(last, rel=1e-4)
    assert "model.safetensors" in err


# evaluate and predict


def test_evaluate_without_weights_is_refused_with_what_to_do(stoker):
    code, _, err = stoker("evaluate", "cfg.yaml")
    assert code == 2
    assert "train first (stoker train cfg.yaml)" in err


@pytest.mark.slow
def test_evaluate_takes_weights_of_a_file_and_refuses_others(stoker, folder):
    stoker("train", "cfg.yaml")
    weights = folder / "runs/cfg/model.safetensors"
    assert stoker("evaluate", "cfg.yaml", "--weights", weights)[0] == 0
    code, _, err = stoker("evaluate", "cfg.yaml", "model.width=5", "--weights", weights)
    assert code == 2
    assert "do not fit this model" in err
    (folder / "bad.safetensors").write_bytes(b"no weights")
    assert stoker("evaluate", "cfg.yaml", "--weights", "bad.safetensors")[0] == 2


@pytest.mark.slow
def test_evaluate_without_validation_data_is_refused(stoker):
    stoker("train", "cfg.yaml")
    code, _, err = stoker("evaluate", "cfg.yaml", "~val_loader")
    assert code == 2
    assert "the config has no val_loader" in err


@pytest.mark.slow
def test_evaluate_takes_the_weights_of_the_run_of_its_config(stoker, folder, caplog):
    stoker("train", "cfg.yaml")
    stoker("train", "cfg.yaml", "run.seed=3")
    assert "runs/cfg/model.safetensors" in stoker("evaluate", "cfg.yaml")[2]
    assert "runs/cfg-2/model.safetensors" in stoker("evaluate", "cfg.yaml", "run.seed=3")[2]
    nearest = stoker("evaluate", "cfg.yaml", "run.seed=3", "optimizer.lr=0.7")[2]
    assert "runs/cfg-2/model.safetensors" in nearest
    assert "the nearest, runs/cfg-2, differs: optimizer.lr was" in caplog.text


@pytest.mark.slow
def test_a_run_folder_is_evaluated_with_its_own_weights(stoker, folder):
    for seed in (1, 2, 3):
        stoker("train", "cfg.yaml", "run.name=named", f"run.seed={seed}", "run.resume=never")
    for name in ("named", "named-2", "named-3"):
        code, _, err = stoker("evaluate", f"runs/{name}")
        assert code == 0
        assert f"runs/{name}/model.safetensors" in err


@pytest.mark.slow
def test_a_run_folder_is_evaluated_from_another_place(stoker, folder, monkeypatch):
    stoker("train", "cfg.yaml")
    monkeypatch.chdir(folder.parent)
    code, _, err = stoker("evaluate", folder / "runs" / "cfg")
    assert code == 0, err


PYTHON = """\
import torch
from torch import nn
from stoker.config import L
from parts import Net, data

lr = 0.05
model = L(Net)(width=4)
optimizer = L(torch.optim.SGD)(lr=lr)
criterion = L(nn.CrossEntropyLoss)()
train_loader = L(torch.utils.data.DataLoader)(L(data)(20), batch_size=4)
val_loader = L(torch.utils.data.DataLoader)(L(data)(10), batch_size=5)
run = dict(epochs=1, progress=False)
"""


@pytest.mark.slow
def test_the_run_folder_of_a_python_config_is_trained_and_evaluated_again(stoker, folder):
    (folder / "py_again.py").write_text(PYTHON)
    assert stoker("train", "py_again.py")[0] == 0
    code, _, err = stoker("train", "runs/py_again", "run.resume=never")
    assert code == 0, err
    assert stoker("evaluate", "runs/py_again")[0] == 0
    first, second = (
        load_file(folder / "runs" / name / "model.safetensors")
        for name in ("py_again", "py_again-2")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture
def trained(stoker):
    stoker("train", "cfg.yaml")
    return stoker


@pytest.mark.slow
def test_predictions_are_written_as_npz(trained, folder):
    code, out, _ = trained("predict", "cfg.yaml", "-o", "out/p.npz")
    assert code == 0
    assert np.load(folder / "out/p.npz")["output"].shape == (10, 3)
    assert "output [10, 3]" in out


@pytest.mark.slow
def test_predictions_are_written_as_jsonl_and_csv_and_agree(trained, folder):
    assert trained("predict", "cfg.yaml", "-o", "p.jsonl")[0] == 0
    assert trained("predict", "cfg.yaml", "-o", "p.csv")[0] == 0
    assert trained("predict", "cfg.yaml")[0] == 0
    rows = [json.loads(row)["output"] for row in (folder / "p.jsonl").read_text().splitlines()]
    with (folder / "p.csv").open() as file:
        header, *lines = csv.reader(file)
    assert header == ["output.0", "output.1", "output.2"]
    whole = np.load(folder / "predictions.npz")["output"]
    np.testing.assert_array_equal(np.array(rows, dtype=np.float32), whole)
    np.testing.assert_array_equal(np.array(lines, dtype=np.float32), whole)
    assert not list(folder.glob("*.partial"))


@pytest.mark.parametrize("name", ["p.parquet", "p", "p.npz.gz"])
def test_another_suffix_is_refused_before_anything_is_made(stoker, name):
    code, _, err = stoker("predict", "cfg.yaml", "-o", name)
    assert code == 2
    assert ".npz, .jsonl or .csv" in err


@pytest.mark.slow
def test_predict_loader_is_preferred(trained, folder):
    loader = "predict_loader={_target_: parts.loader_of, batch_size: 4, count: 6}"
    assert trained("predict", "cfg.yaml", loader)[0] == 0
    assert len(np.load(folder / "predictions.npz")["output"]) == 6


@pytest.mark.slow
def test_several_outputs_are_written_by_their_names(trained, folder):
    text = (folder / "parts.py").read_text()
    (folder / "twoheads.py").write_text(
        text + "\n\nclass Two(Net):\n    def forward(self, x):\n"
        "        y = super().forward(x)\n        return {'a': y, 'b': y.argmax(1)}\n"
    )
    target = "model={_target_: twoheads.Two, width: 8}"
    assert trained("predict", "cfg.yaml", target, "-o", "p.csv")[0] == 0
    assert (folder / "p.csv").read_text().startswith("a.0,a.1,a.2,b\n")


# explain


def test_explain_answers_a_layer_that_is_not_there_in_a_line(stoker):
    code, _, err = stoker("explain", "cfg.yaml", "+hooks={type: FreezeLayers, _args_: [frist]}")
    assert code == 2
    assert "did you mean 'first'" in err


def test_explain_shows_loop_metrics_parameters_calendar_and_rate(stoker, folder):
    before = everything_in(folder)
    code, out, _ = stoker("explain", "cfg.yaml", "run.accumulate=2", "lr_scheduler=cosine")
    assert code == 0
    for title in ("The loop", "Metrics", "Parameters", "Data", "Calendar", "Learning rate"):
        assert f"{title}\n{'─' * len(title)}" in out
    assert "before_step" in out
    assert re.search(r"steps per epoch +3\n", out)
    assert re.search(r"steps in total +6\n", out)
    assert re.search(r"samples per step +8 \(4 × accumulate 2\)", out)
    assert re.search(r"validations +2\n", out)
    assert re.search(r"total +Net +67 +67\n", out)
    assert "first 0.1, highest 0.1" in out
    assert "(6 steps)" in out
    assert everything_in(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "steps", "validations"),
    [
        (["run.max_steps=7"], 7, 2),
        (["run.validate_every=3st"], 10, 4),
        (["run.validate_every=2ep", "run.epochs=3"], 15, 2),
        (["run.validate_every=null"], 10, 0),
        (["~val_loader"], 10, 0),
        (["run.limit_train_batches=2"], 4, 2),
        (["run.overfit_batches=1"], 2, 2),
        (["run.lr_step=epoch", "lr_scheduler={type: StepLR, step_size: 1}"], 10, 2),
    ],
)
def test_the_calendar_is_what_happens(stoker, folder, overrides, steps, validations):
    from stoker.build import build_job
    from stoker.config import load

    _, out, _ = stoker("explain", "cfg.yaml", *overrides)
    job = build_job(load("cfg.yaml", [*overrides, "run.dir=null"]))
    job.fit()
    (sizes,) = [hook for hook in job.trainer.hooks if type(hook).__name__ == "Sizes"]
    assert (len(sizes.sizes), len(sizes.val)) == (steps, validations)
    assert re.search(rf"steps in total +{steps}\n", out)
    assert re.search(rf"validations +{validations or 'none'}\n", out)


def test_explain_reports_a_reader_before_its_maker(stoker, folder):
    (folder / "early.py").write_text(
        "from stoker import Hook\n\n\nclass Early(Hook):\n    priority = 5\n"
        "    consumes = ('val/loss',)\n"
    )
    _, out, _ = stoker("explain", "cfg.yaml", "+hooks={_target_: early.Early}")
    assert "conflict: Early (priority 5) uses 'val/loss' before Loss" in out
    _, out, _ = stoker(
        "explain", "cfg.yaml", "+hooks={type: EarlyStopping, monitor: val/los, mode: min}"
    )
    assert "conflict: EarlyStopping uses 'val/los', which no hook produces; did you mean" in out
    assert "conflict" not in stoker("explain", "cfg.yaml", "+hooks=EarlyStopping")[1]


def test_explain_counts_frozen_layers(stoker):
    _, out, _ = stoker("explain", "cfg.yaml", "+hooks={type: FreezeLayers, _args_: [first]}")
    assert re.search(r"first +Linear +40 +0 +frozen", out)
    assert re.search(r"last +Linear +27 +27\n", out)
    assert re.search(r"total +Net +67 +27 +partly frozen", out)


# config, hooks, metrics, env


def test_config_prints_what_loads_again(stoker, folder):
    code, out, err = stoker("config", "cfg.yaml", "optimizer.lr=3e-4")
    assert (code, err) == (0, "")
    (folder / "again.yaml").write_text(out)
    assert stoker("config", "again.yaml", "--check")[1] == out
    assert "lr: 0.0003" in out


def test_config_says_why(stoker):
    assert stoker("config", "cfg.yaml", "--why", "run.epochs")[1] == (
        "run.epochs = 2  (cfg.yaml:15)\n"
    )
    code, _, err = stoker("config", "cfg.yaml", "--why", "run.epoch")
    assert code == 2
    assert "did you mean 'epochs'" in err


def test_config_checks_when_requested(stoker, folder):
    (folder / "bad.yaml").write_text("model: {_target_: parts.Net, widht: 3}\nrun: {epochs: x}\n")
    code, out, err = stoker("config", "bad.yaml", "--check")
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == "stoker: 2 errors"
    assert "bad.yaml:1: parts.Net has no argument 'widht'; did you mean 'width'?" in err


def test_allow_lets_a_yaml_name_more(stoker, folder):
    (folder / "other.yaml").write_text("model: {_target_: fractions.Fraction}\n")
    code, _, err = stoker("config", "other.yaml", "--check")
    assert code == 2
    assert "--allow fractions." in err
    assert stoker("config", "other.yaml", "--check", "--allow", "fractions.")[0] == 0


def test_the_hooks_are_listed_and_described(stoker):
    code, out, _ = stoker("hooks")
    assert code == 0
    from stoker.config import HOOKS

    assert [line.split()[0] for line in out.splitlines()] == list(HOOKS)
    assert all(len(line.split()) > 1 for line in out.splitlines())
    code, out, _ = stoker("hooks", "EarlyStopping")
    assert code == 0
    assert "patience" in out
    code, _, err = stoker("hooks", "EarlyStoping")
    assert code == 2
    assert "did you mean 'EarlyStopping'?" in err


def test_the_metrics_are_listed_and_described(stoker):
    code, out, _ = stoker("metrics")
    assert code == 0
    name = out.split()[0]
    code, out, _ = stoker("metrics", name)
    assert code == 0
    assert out.startswith(f"{name}(")
    code, _, err = stoker("metrics", "acuracy")
    assert code == 2
    assert "there is no metric 'acuracy'; did you mean" in err


def test_listed_metrics_can_be_described(stoker):
    names = stoker("metrics")[1].split()[::20]
    assert [name for name in names if stoker("metrics", name)[0] != 0] == []


def test_env_is_json(stoker):
    code, out, _ = stoker("env")
    assert code == 0
    assert json.loads(out)["packages"]["torch"]


# new


@pytest.mark.slow
@pytest.mark.parametrize("name", ["starter", "my project", "2024", "null", "a: b", "#1", "1e-3"])
def test_a_new_project_trains_at_once(stoker, folder, monkeypatch, name):
    code, out, _ = stoker("new", name)
    assert code == 0
    assert "stoker train config.yaml" in out
    monkeypatch.chdir(folder / name)
    monkeypatch.delitem(__import__("sys").modules, "net", raising=False)
    code, _, err = stoker("train", "config.yaml", "run.epochs=1", "run.limit_train_batches=3")
    assert code == 0, err
    assert (folder / name / "runs" / name / "model.safetensors").is_file()


def test_new_refuses_a_folder_that_is_not_empty(stoker, folder):
    before = everything_in(folder)
    code, _, err = stoker("new", ".")
    assert code == 2
    assert "not empty" in err
    assert stoker("new", "cfg.yaml")[0] == 2
    assert stoker("new", "cfg.yaml/sub")[0] == 2
    assert everything_in(folder) == before
    (folder / "empty").mkdir()
    assert stoker("new", "empty")[0] == 0


# lr-find


@pytest.mark.slow
def test_lr_find_suggests_draws_and_writes_a_picture(stoker, folder):
    before = everything_in(folder)
    code, out, _ = stoker("lr-find", "cfg.yaml", "--from", "1e-4", "--to", "10", "--steps", "30")
    assert code == 0
    assert "│" in out
    assert re.search(r"suggestion: optimizer\.lr=\S+", out)
    assert (folder / "lr-find.png").read_bytes().startswith(b"\x89PNG")
    assert {str(path) for path in everything_in(folder) - before} == {"lr-find.png"}
    assert stoker("lr-find", "cfg.yaml", "--steps", "5", "-o", "a/b.png")[0] in (0, 1)
    assert (folder / "a/b.png").is_file()


@pytest.mark.parametrize(
    "options", [["--from", "1", "--to", "0.1"], ["--steps", "2"], ["--from", "0"]]
)
def test_lr_find_refuses_a_sweep_that_cannot_be(stoker, options):
    assert stoker("lr-find", "cfg.yaml", *options)[0] == 2


def test_lr_find_refuses_a_picture_it_cannot_write(stoker):
    code, out, err = stoker("lr-find", "cfg.yaml", "--steps", "5", "-o", "plot.xyz")
    assert (code, out) == (2, "")
    assert "plot.xyz" in err


# Usage


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["trian", "cfg.yaml"], "there is no command 'trian'; did you mean 'train'?"),
        (["train"], "CFG"),
        (["train", "nothing.yaml"], "there is no config 'nothing.yaml'"),
        (["train", "cgf.yaml"], "did you mean 'cfg.yaml'?"),
        (["train", "cfg.yaml", "--lr", "3"], "use 'optimizer.lr=3'"),
        (["train", "cfg.yaml", "--learning-rate=3"], "use 'optimizer.lr=3'"),
        (["train", "cfg.yaml", "--max_epochs=3"], "use 'run.epochs=3'"),
        (["train", "cfg.yaml", "--wieghts", "x"], "did you mean '--weights'?"),
        (["train", "cfg.yaml", "modle.width=3"], "use 'model.width=3'"),
        (["hooks", "Loss", "more"], "has no option more"),
        (["lr-find", "cfg.yaml", "--steps", "many"], "invalid int value"),
        (["train", "."], "config.yaml"),
    ],
)
def test_a_command_that_cannot_be_ends_with_2_and_says_why(stoker, argv, words):
    code, out, err = stoker(*argv)
    assert code == 2
    assert out == ""
    assert words in err
    assert all(line.startswith("stoker: ") for line in err.splitlines())


def test_no_command_at_all_shows_the_help(stoker):
    code, out, _ = stoker()
    assert code == 2
    assert "COMMAND" in out


def test_the_help_of_train_has_every_field_of_run(stoker):
    from dataclasses import fields, is_dataclass

    from stoker.config import RunConfig

    code, out, _ = stoker("train", "--help-all")
    assert code == 0
    for one in fields(RunConfig):
        assert f"run.{one.name}" in out
        if not is_dataclass(one.type):
            assert one.metadata["help"] in out
        else:
            for inner in fields(one.type):
                assert f"run.{one.name}.{inner.name}=" in out
                assert inner.metadata["help"] in out


COMMANDS = ("train", "evaluate", "predict", "explain", "lr-find", "config", "hooks", "metrics")


@pytest.mark.parametrize("name", [*COMMANDS, "profile", "env", "new"])
def test_every_command_has_a_help(stoker, name):
    assert name in stoker("--help")[1]
    code, out, _ = stoker(name, "--help")
    assert code == 0
    assert f"usage: stoker {name}" in out


def test_the_version_is_reported(stoker):
    code, out, _ = stoker("--version")
    assert code == 0
    assert re.fullmatch(r"stoker \d+\.\d+\.\d+\S*\n", out)


@pytest.mark.slow
def test_a_run_resumes_in_the_folder_of_its_own_config(stoker, folder):
    """Another run of that name, with another config, lies beside it and is newer."""
    assert stoker("train", "cfg.yaml")[0] == 0
    assert stoker("train", "cfg.yaml", "optimizer.lr=0.25")[0] == 0
    other = (folder / "runs" / "cfg-2" / "metrics.jsonl").read_bytes()
    code, out, _ = stoker("train", "cfg.yaml", "run.epochs=3")
    assert code == 0
    assert "the run is in runs/cfg\n" in out
    assert "resuming from runs/cfg/checkpoints/" in (folder / "runs/cfg/log.txt").read_text()
    assert (folder / "runs" / "cfg-2" / "metrics.jsonl").read_bytes() == other
