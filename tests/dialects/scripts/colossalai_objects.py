"""A script as the first document has it: hook objects, a timer, a logger; digits for data."""

import sys

import colossalai
import torch
from colossalai.core import global_context as gpc
from colossalai.engine import Engine
from colossalai.logging import get_dist_logger
from colossalai.trainer import Trainer, hooks
from colossalai.utils import MultiTimer
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Subset, TensorDataset

NUM_EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 2

x, y = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(x / 16).float(), torch.tensor(y))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = colossalai.utils.get_dataloader
train_dataloader = loader(Subset(dataset, range(1500)), shuffle=True, batch_size=64)
test_dataloader = loader(Subset(dataset, range(1500, 1797)), batch_size=64)
steps = NUM_EPOCHS * len(train_dataloader)
lr_scheduler = colossalai.nn.lr_scheduler.CosineAnnealingLR(optimizer, total_steps=steps)

engine, train_dataloader, test_dataloader, lr_scheduler = colossalai.initialize(
    model, optimizer, criterion, train_dataloader, test_dataloader, lr_scheduler
)
assert isinstance(engine, Engine)
assert dict(gpc.config) == {}

if "--own-loop" in sys.argv:
    for img, label in train_dataloader:
        engine.zero_grad()
        output = engine(img)
        train_loss = engine.criterion(output, label)
        engine.backward(train_loss)
        engine.step()

timer = MultiTimer()
logger = get_dist_logger()
logger.log_to_file("./logs/")
trainer = Trainer(engine=engine, timer=timer, logger=logger)


class Dies(hooks.BaseHook):
    """Ends the process at a step, as a killed one ends."""

    def after_train_iter(self, trainer, output, label, loss):
        if f"--die-at={trainer.cur_step}" in sys.argv:
            import os

            os._exit(9)


hook_list = [
    hooks.LossHook(),
    hooks.LRSchedulerHook(lr_scheduler=lr_scheduler, by_epoch=False),
    hooks.AccuracyHook(),
    hooks.TensorboardHook(log_dir="./tb_logs", ranks=[0]),
    hooks.LogMetricByEpochHook(logger),
    hooks.LogMemoryByEpochHook(logger),
    hooks.LogTimingByEpochHook(timer, logger),
    hooks.SaveCheckpointHook(checkpoint_dir="./ckpt"),
]
trainer.fit(
    train_dataloader=train_dataloader,
    epochs=NUM_EPOCHS,
    test_dataloader=test_dataloader,
    test_interval=1,
    hooks=[*hook_list, Dies(99)],
    display_progress=True,
)
torch.save(model.state_dict(), "weights.pt")
accuracy = trainer.states["metrics"]["test"]["Accuracy"].get_accumulated_value()
print("accuracy", accuracy)
assert accuracy > 0.8
