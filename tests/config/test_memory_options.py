"""The options of the `run` section that save memory."""

import pytest

from stoker import RetrySchedule
from stoker.build import build_job
from stoker.config import ConfigError, load

TEXT = """
model: {_target_: stoker.nn.Transformer, vocabulary: 8, context: 4, width: 8}
optimizer: {_target_: torch.optim.SGD, lr: 0.1}
train_loader:
  _target_: torch.utils.data.DataLoader
  dataset: {_target_: torch.utils.data.TensorDataset, _args_: [{_target_: torch.zeros, size: [8]}]}
run: {dir: null, epochs: 1, global_batch: 8}
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "cfg.yaml").write_text(TEXT)
    return tmp_path / "cfg.yaml"


def test_auto_divides_the_global_batch(config):
    made = build_job(load(config, ["run.micro_batch=auto"]))
    assert isinstance(made.trainer.step.schedule, RetrySchedule)
    assert (made.run.micro_batch, made.run.accumulate) == (8, 1)
    with pytest.raises(ConfigError, match=r"set run\.global_batch"):
        build_job(load(config, ["run.micro_batch=auto", "run.global_batch=null"]))


def test_activations_are_checkpointed(config):
    made = build_job(load(config, ["run.activation_checkpointing=blocks"]))
    assert "forward" in vars(made.trainer.engine.model.blocks[0])
