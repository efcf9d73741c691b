"""A script as the second document has it: an engine made by hand, hooks as dicts."""

import colossalai
import torch
from colossalai.engine import Engine
from colossalai.trainer import Trainer, hooks
from colossalai.trainer.metric import Metric
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x, y = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(x / 16).float()[:640], torch.tensor(y)[:640])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters())
lr_scheduler = colossalai.nn.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
schedule = colossalai.engine.NoPipelineSchedule()

my_engine = Engine(model=model, criterion=criterion, optimizer=optimizer, step_schedule=schedule)
my_trainer = Trainer(my_engine)


class Norm(Metric):
    """The norm of the outputs."""

    def __init__(self):
        super().__init__(epoch_only=True)
        self.reset()

    def reset(self):
        self.sum = self.last = 0.0

    def update(self, output):
        self.last = output.detach().norm().item()
        self.sum += self.last

    def get_last_step_value(self):
        return self.last

    def get_accumulated_value(self):
        return self.sum

    @staticmethod
    def is_better(a, b):
        return a < b


class NormHook(hooks.MetricHook):
    """Gathers it, before hooks that tell of it."""

    def __init__(self, priority=1):
        super().__init__(priority)

    def after_hook_is_attached(self, runner):
        super().after_hook_is_attached(runner)
        runner.states["metrics"]["train"]["Norm"] = self.norm = Norm()

    def before_train_epoch(self, runner):
        self.norm.reset()

    def after_train_iter(self, runner, output, label, loss):
        self.norm.update(output)


colossalai.registry.HOOKS.register_module(NormHook, force=True)

train_dataloader = DataLoader(dataset, batch_size=64, shuffle=True)
hook_list = [
    dict(type="LogMetricByEpochHook"),
    dict(type="LogTimingByEpochHook"),
    dict(type="LogMemoryByEpochHook"),
    dict(type="AccuracyHook"),
    dict(type="LossHook"),
    dict(type="NormHook"),
    dict(type="TensorboardHook", log_dir="./tfb_logs"),
    dict(type="SaveCheckpointHook", interval=5, checkpoint_dir="./ckpt"),
]
my_trainer.fit(train_dataloader, epochs=20, test_dataloader=train_dataloader, hooks=hook_list)

again = Trainer(my_engine)
again.fit(
    train_dataloader,
    epochs=21,
    test_dataloader=train_dataloader,
    hooks=[*hook_list, dict(type="LoadCheckpointHook", epoch=20, checkpoint_dir="./ckpt")],
)
print("epochs", again.cur_epoch, "norm", again.states["metrics"]["train"]["Norm"].last > 0)
assert again.cur_epoch == 21
