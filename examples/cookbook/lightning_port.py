"""A Lightning module with mixup, OneCycle, clipping, averaged weights and a best checkpoint."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import Engine, Step, Trainer, hooks, seed_all
from stoker.data import total_steps

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
train = DataLoader(TensorDataset(x[:1500], y[:1500]), 50, shuffle=True)
val = DataLoader(TensorDataset(x[1500:], y[1500:]), 99)


class Mixup(Step):
    def forward(self, engine, batch):  # was training_step
        x, y = batch
        other, share = torch.randperm(len(x)), torch.rand(())
        outputs = engine(share * x + (1 - share) * x[other])
        loss = share * engine.criterion(outputs, y)
        return loss + (1 - share) * engine.criterion(outputs, y[other])

    val_forward = Step.forward  # was validation_step


seed_all(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
steps = total_steps(train, epochs=8)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
engine = Engine(model, optimizer, nn.CrossEntropyLoss(), lr_scheduler=scheduler, clip_norm=1.0)
best = hooks.Checkpoint(best="val/accuracy")
more = [hooks.Metrics("accuracy"), hooks.EMA(0.9, use_at_end=True)]
trainer = Trainer(
    engine, [*hooks.default(checkpoint=best), *more], step=Mixup(), run_dir="runs/port"
)
trainer.fit(train, val, epochs=8)
guesses = trainer.predict(val).argmax(1)
print(f"accuracy: {(guesses == y[1500:]).float().mean():.3f}")
