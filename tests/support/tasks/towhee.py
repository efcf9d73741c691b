"""A Towhee training for tests in several processes."""

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from stoker.dialects.towhee.trainer.trainer import Trainer
from stoker.dialects.towhee.trainer.training_config import TrainingConfig


def train(folder: str, batch_size: int) -> tuple[list[float], dict, list[str]]:
    """The weights, the logs and the folders of a short training."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, (x.sum(1) > 0).long())
    config = TrainingConfig(
        output_dir=folder, batch_size=batch_size, lr=0.1, print_steps=1, tensorboard=None
    )
    trainer = Trainer(model, config, data, data)
    trainer.train()
    weights = model.weight.detach().flatten().tolist()
    return weights, dict(trainer.logs), sorted(p.name for p in Path(folder).iterdir())
