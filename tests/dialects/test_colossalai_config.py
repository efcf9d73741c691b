"""Colossal-AI scripts that leave all parts to a config, and what their context knows."""

import sys

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import stoker.dialects.colossalai as colossalai
from stoker.config import ConfigError
from stoker.dialects.colossalai.amp.amp_type import AMP_TYPE
from stoker.dialects.colossalai.context.parallel_mode import ParallelMode
from stoker.dialects.colossalai.core import global_context as gpc
from stoker.dialects.colossalai.engine import Engine, NoPipelineSchedule
from stoker.dialects.colossalai.logging import get_dist_logger, get_global_dist_logger
from stoker.dialects.colossalai.registry import DATASETS, MODELS
from stoker.dialects.colossalai.trainer import Trainer, hooks
from support.toys import batches, net, samples, sgd


@MODELS.register_module
class SmallNet(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))


@DATASETS.register_module
class SmallData(Dataset):
    def __init__(self, count):
        self.x, self.y = samples(count)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return (self.x[index],), (self.y[index],)


CONFIG = """
num_epochs = 2
seed = 7
model = dict(type="SmallNet", width=8)
train_data = dict(dataset=dict(type="SmallData", count=20), dataloader=dict(batch_size=4))
test_data = dict(dataset=dict(type="SmallData", count=8), dataloader=dict(batch_size=4))
optimizer = dict(type="Lamb", lr=0.1)
loss = dict(type="CrossEntropyLoss")
lr_scheduler = dict(type="LinearWarmupLR", warmup_steps=2)
engine = dict(gradient_accumulation=2, gradient_clipping=1.0, schedule=None)
logging = dict(root_path="./logs")
hooks = [
    dict(type="LogMetricByEpochHook"), dict(type="AccuracyHook"), dict(type="LossHook"),
    dict(type="SaveCheckpointHook", checkpoint_dir="./ckpt"),
]
"""


@pytest.fixture(autouse=True)
def own_context(monkeypatch):
    """Each test begins without a config and without words on the command line."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    gpc.config = type(gpc.config)()
    yield
    gpc.config = type(gpc.config)()
    gpc.destroy()


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.py").write_text(CONFIG)
    return str(tmp_path / "config.py")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["first argument", "keyword", "command line"])
def test_a_config_file_describes_all_parts_of_a_training(config, way, monkeypatch, tmp_path):
    if way == "command line":
        monkeypatch.setattr(sys, "argv", ["train.py", "--config", config, "--own", "1"])
        made = colossalai.initialize()
    else:
        made = (
            colossalai.initialize(config) if way[0] == "f" else colossalai.initialize(config=config)
        )
    engine, train, test = made
    assert isinstance(engine.model, SmallNet)
    assert isinstance(engine.optimizer, colossalai.nn.Lamb)
    assert (engine.gradient_accumulation, engine.core.clip_norm) == (2, 1.0)
    assert engine.lr_scheduler.total_steps == 2 * (5 // 2)
    logger = get_global_dist_logger()
    logger.info("engine is built", ranks=[0])
    trainer = Trainer(engine=engine, verbose=True)
    trainer.fit(
        train_dataloader=train,
        test_dataloader=test,
        epochs=gpc.config.num_epochs,
        hooks_cfg=gpc.config.hooks,
        test_interval=2,
    )
    assert trainer.cur_step == 4
    assert engine.optimizer.param_groups[0]["lr"] == pytest.approx(0.0)
    assert (tmp_path / "ckpt" / "epoch2-tp0-pp0.pt").exists()
    assert "engine is built" in (tmp_path / "logs" / "rank_0.log").read_text()
    found = trainer.states["metrics"]["test"]["Accuracy"].get_accumulated_value()
    assert 0 <= found <= 1


def test_loaders_may_be_given_to_a_config_as_objects_or_functions(config):
    data = batches(16)
    engine, train, test = colossalai.initialize(config, train_dataloader=lambda: data)
    assert (len(train), len(test)) == (4, 2)
    output, _, loss = engine.step(iter(train))
    assert output.shape == (4, 3)
    assert loss.item() > 0


def test_the_oldest_scripts_give_the_engine_its_scheduler_and_the_trainer_its_hooks(config):
    engine, train, _ = colossalai.initialize(config=config)
    seen = []

    class Counts(hooks.BaseHook):
        def __init__(self, trainer, priority=5):
            super().__init__(trainer, priority)

        def after_train_iter(self, output, label, loss):
            seen.append((self.trainer.cur_step, self.logger is self.trainer.logger))

    colossalai.registry.HOOKS.register_module(Counts, force=True)
    trainer = Trainer(engine=engine, hooks_cfg=[dict(type="Counts")], verbose=True)
    trainer.fit(train_dataloader=train, max_epochs=1, display_progress=False)
    assert seen == [(0, True), (1, True)]
    with pytest.raises(TypeError, match="max_epochs is an older name of epochs"):
        trainer.fit(train, epochs=1, max_epochs=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("model", None), "has no 'model'"),
        (("loss", None), "has no 'loss'"),
        (("optimizer", None), "has no 'optimizer'"),
        (("train_data", dict(datasets={})), "train_data has 'datasets'.*did you mean 'dataset'"),
        (("engine", dict(clipping=1.0)), "engine has 'clipping'"),
    ],
)
def test_a_config_without_a_part_is_refused(config, change, message):
    parts = {**gpc.config.from_file(config)}
    parts[change[0]] = change[1]
    with pytest.raises(ConfigError, match=message):
        colossalai.initialize({name: value for name, value in parts.items() if value is not None})


def test_initialize_says_what_it_needs(config):
    with pytest.raises(ConfigError, match="neither a model nor a config"):
        colossalai.initialize()
    with pytest.raises(TypeError, match="a model but no optimizer"):
        colossalai.initialize(net())
    with pytest.raises(TypeError, match="parts but no model"):
        colossalai.initialize(config=config, criterion=nn.MSELoss())
    with pytest.raises(TypeError, match="world_size, which is an argument of launch"):
        colossalai.initialize(net(), torch.optim.SGD, world_size=2)


def test_one_process_needs_no_launcher():
    colossalai.launch_from_torch(config=dict(clip_grad=0.5))
    assert gpc.is_initialized(ParallelMode.GLOBAL)
    assert not gpc.is_initialized(ParallelMode.PIPELINE)
    engine, *_ = colossalai.initialize(net, torch.optim.SGD)
    assert engine.core.clip_norm == 0.5
    for mode in (ParallelMode.GLOBAL, ParallelMode.DATA, ParallelMode.MODEL, ParallelMode.PIPELINE):
        assert (gpc.get_local_rank(mode), gpc.get_world_size(mode)) == (0, 1)
        assert gpc.get_next_global_rank(mode) == gpc.get_prev_global_rank(mode) == 0
        assert gpc.is_first_rank(mode)
        assert gpc.is_last_rank(mode)
        assert gpc.get_ranks_in_group(mode) == [0]
        assert gpc.get_group(mode) is None
    with pytest.raises(ValueError, match="no groups of kind ParallelMode.PARALLEL_2D_ROW"):
        gpc.get_local_rank(ParallelMode.PARALLEL_2D_ROW)
    gpc.destroy()
    assert not gpc.is_initialized(ParallelMode.GLOBAL)


def test_mixed_precision_can_be_switched_off_and_set_by_a_schedule():
    gpc.load_config(dict(fp16=dict(mode=None)))
    model = net()
    assert colossalai.initialize(model, sgd(model))[0].core.precision.name == "fp32"
    gpc.config.fp16["mode"] = AMP_TYPE.PARALLEL
    assert colossalai.initialize(model, sgd(model))[0].core.precision.name == "fp16"
    gpc.load_config({})
    schedule = NoPipelineSchedule(amp_type=AMP_TYPE.TORCH, amp_config=dict(init_scale=64.0))
    made = Engine(model, sgd(model), nn.CrossEntropyLoss(), step_schedule=schedule)
    assert made.core.scaler.get_scale() == 64.0
    with pytest.raises(ValueError, match="needs an amp_type"):
        NoPipelineSchedule(amp_config=dict(init_scale=64.0))


def test_a_logger_takes_level_and_folder_as_in_the_oldest_version(tmp_path):
    logger = get_dist_logger("oldest", level="WARNING", root_path=tmp_path, mode="w")
    logger.info("quiet")
    logger.warning("loud")
    assert "quiet" not in (tmp_path / "rank_0.log").read_text()
    assert "loud" in (tmp_path / "rank_0.log").read_text()
