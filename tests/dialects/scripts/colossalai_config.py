"""A script whose parts are all in a config; its processes cut the model into stages themselves."""

import os
import signal
import sys

import colossalai
import torch
from colossalai.context import ParallelMode
from colossalai.core import global_context as gpc
from colossalai.registry import DATASETS, HOOKS, MODELS
from colossalai.trainer import Trainer, hooks
from torch import nn


@MODELS.register_module
class Stage(nn.Sequential):
    def __init__(self, width):
        layers = [nn.Linear(6, width), nn.BatchNorm1d(width), nn.Dropout(0.3), nn.Linear(width, 3)]
        size = len(layers) // gpc.pipeline_parallel_size
        first = gpc.get_local_rank(ParallelMode.PIPELINE) * size
        super().__init__(*layers[first : first + size])


@DATASETS.register_module
class Noisy(torch.utils.data.Dataset):
    def __init__(self, count):
        self.x = torch.randn(count, 6, generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + 0.1 * torch.randn(6), int(self.x[index].sum() > 0)


@HOOKS.register_module
class KillHook(hooks.BaseHook):
    def after_train_iter(self, trainer, output, label, loss):
        is_last = gpc.is_last_rank(ParallelMode.GLOBAL)
        if is_last and f"--kill-at={trainer.cur_step}" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)


stages = 2 if "--stages" in sys.argv else 1
engine, train, test = colossalai.initialize(
    config=dict(
        parallel=dict(pipeline=stages),
        NUM_MICRO_BATCHES=2,
        num_epochs=3,
        seed=7,
        model=dict(type="Stage", width=8),
        train_data=dict(
            dataset=dict(type="Noisy", count=56), dataloader=dict(batch_size=8, shuffle=True)
        ),
        test_data=dict(dataset=dict(type="Noisy", count=16), dataloader=dict(batch_size=8)),
        optimizer=dict(type="Lamb", lr=0.1),
        loss=dict(type="CrossEntropyLoss"),
        lr_scheduler=dict(type="CosineAnnealingWarmupLR", warmup_steps=4),
        clip_grad_norm=1.0,
        hooks=[
            dict(type="LossHook"),
            dict(type="LogMetricByEpochHook"),
            dict(type="SaveCheckpointHook", checkpoint_dir="./ckpt", interval=4, save_by_iter=True),
            dict(type="KillHook", priority=99),
        ],
    )
)
trainer = Trainer(engine=engine)
trainer.fit(train, epochs=gpc.config.num_epochs, test_dataloader=test, hooks=gpc.config.hooks)
metrics = trainer.states["metrics"]
state = {
    "model": engine.given_model.state_dict(),
    "optimizer": engine.optimizer.state_dict(),
    "lr": engine.lr_scheduler.state_dict()["last_epoch"],
    "losses": [metrics[which]["Loss"].get_accumulated_value() for which in ("train", "test")],
    "random": torch.rand(3),
}
torch.save(state, f"rank{gpc.get_global_rank()}.pt")
