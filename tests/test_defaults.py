"""A run from a config is the run that a person would write by hand."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from stoker import Engine, Trainer, hooks
from stoker.build import build_job
from stoker.config import Config, ConfigError, L, load
from stoker.core import seed
from stoker.nn import lr as schedules
from support.project import project
from support.toys import plain_loop, same_bits


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return project(tmp_path, monkeypatch)


OVERRIDES = [
    *("run.dir=null", "run.seed=11", "model.dropout=0.3", "train_loader.shuffle=true"),
    *("optimizer.momentum=0.9", "lr_scheduler={type: cosine, warmup_steps: 2}"),
]


def test_a_run_from_a_config_ends_at_the_bits_of_the_plain_loop(folder):
    job = build_job(load(folder / "cfg.yaml", OVERRIDES))
    job.fit()
    import parts

    seed.seed_all(11)
    model = parts.Net(8, 0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = DataLoader(parts.data(20), batch_size=4, shuffle=True)
    scheduler = schedules.cosine(optimizer, 10, warmup_steps=2)
    plain_loop(model, optimizer, data, epochs=2, scheduler=scheduler)
    assert same_bits(job.trainer.engine.model, model)


def test_a_run_from_a_config_ends_at_the_bits_of_the_script_with_a_trainer(folder):
    job = build_job(
        load(folder / "cfg.yaml", [*OVERRIDES, "run.accumulate=2", "run.clip_norm=0.5"])
    )
    job.fit()
    import parts

    seed.seed_all(11)
    model = parts.Net(8, 0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    engine = Engine(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        lr_scheduler=schedules.cosine(optimizer, 6, warmup_steps=2),
        clip_norm=0.5,
    )
    trainer = Trainer(engine, hooks.default(progress=False), accumulate=2)
    data = DataLoader(parts.data(20), batch_size=4, shuffle=True)
    trainer.fit(data, DataLoader(parts.data(10), batch_size=5), epochs=2)
    assert same_bits(job.trainer.engine.model, model)


def test_the_same_config_twice_ends_at_the_same_bits_and_another_seed_does_not(folder):
    def trained(*more):
        job = build_job(load(folder / "cfg.yaml", [*OVERRIDES, *more]))
        job.fit()
        return job.trainer.engine.model

    first = trained()
    assert same_bits(first, trained())
    assert not same_bits(first, trained("run.seed=12"))


def test_python_and_yaml_configs_end_at_the_same_bits(folder):
    (folder / "py_same.py").write_text(
        "import torch\nfrom stoker.config import L\nfrom parts import Net, data\n"
        "model = L(Net)(8)\noptimizer = L(torch.optim.SGD)(lr=0.1)\n"
        "criterion = dict(type='CrossEntropyLoss')\n"
        "train_loader = L(torch.utils.data.DataLoader)(L(data)(20), batch_size=4)\n"
        "run = dict(epochs=2, progress=False, dir=None)\n"
    )
    first = build_job(load(folder / "py_same.py"))
    second = build_job(load(folder / "cfg.yaml", ["run.dir=null"]))
    first.fit()
    second.fit()
    assert same_bits(first.trainer.engine.model, second.trainer.engine.model)


def test_hooks_of_the_config_stand_beside_the_usual_ones(folder):
    kinds = [type(h).__name__ for h in build_job(load(folder / "cfg.yaml")).trainer.hooks]
    assert {"Loss", "LR", "Timing", "LogFile", "SaveWeights", "Sizes", "Provenance"} <= set(kinds)
    assert "Progress" not in kinds
    only = build_job(load(folder / "cfg.yaml", ["run.default_hooks=false"])).trainer.hooks
    assert [type(h).__name__ for h in only] == ["Provenance", "Sizes"]


def test_assembling_writes_nothing(folder):
    before = set(folder.iterdir())
    build_job(load(folder / "cfg.yaml"))
    assert {path for path in folder.iterdir() if path.name != "__pycache__"} <= before


def test_a_shared_dataset_is_built_once(folder):
    (folder / "shared.yaml").write_text(
        "data: {_target_: parts.data}\n"
        + (folder / "cfg.yaml")
        .read_text()
        .replace("{_target_: parts.data, count: 20}", "${data}")
        .replace("{_target_: parts.data, count: 10}", "${data}")
    )
    job = build_job(load(folder / "shared.yaml"))
    assert job.train_loader.dataset is job.val_loader.dataset
    import parts

    assert parts.MADE.count("data") == 1


def test_without_training_no_training_data_is_made(folder):
    job = build_job(load(folder / "cfg.yaml"), training=False)
    import parts

    assert parts.MADE.count("data") == 1
    assert job.train_loader is None
    assert set(job.evaluate()) >= {"val/loss"}
    assert job.predict().shape == (10, 3)


def test_several_validation_loaders_have_names(folder):
    one = "{_target_: torch.utils.data.DataLoader, dataset: {_target_: parts.data}, batch_size: 5}"
    loaders = f"val_loader={{near: {one}, far: {one}}}"
    job = build_job(load(folder / "cfg.yaml", [loaders, "run.dir=null"]))
    row = job.fit()[-1]
    assert any("near" in name for name in row)
    assert any("far" in name for name in row)
    with pytest.raises(ConfigError, match="nothing to predict"):
        job.predict()


def test_a_step_of_the_config_is_used(folder):
    (folder / "ownstep.py").write_text(
        "from stoker import Step\n\n\nclass Mine(Step):\n"
        "    def forward(self, engine, batch):\n"
        "        output = super().forward(engine, batch)\n"
        "        output.scalars['mine'] = 7.0\n        return output\n"
    )
    config = load(folder / "cfg.yaml", ["step={_target_: ownstep.Mine}", "run.dir=null"])
    assert build_job(config).fit()[-1]["train/mine"] == 7.0


def test_the_folder_of_a_run_is_named_by_the_run_or_the_file(folder):
    config = load(folder / "cfg.yaml")
    assert str(build_job(config).trainer.run.dir) == "runs/cfg"
    config.override("run.name=mine", "run.dir=elsewhere")
    assert str(build_job(config).trainer.run.dir) == "elsewhere/mine"


def test_an_error_of_a_part_names_its_place(folder):
    config = Config(
        {
            "model": L(nn.Linear)(4, -3),
            "optimizer": {"type": "SGD"},
            "train_loader": L(list)(),
            "run": {"epochs": 1},
        }
    )
    with pytest.raises(ConfigError, match="^RuntimeError: .*negative dimension") as caught:
        build_job(config)
    assert "while 'model' was built (test_defaults.py:" in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)
