"""What people use callbacks for: stop early, keep the best, log rates and gradients, unfreeze."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from stoker import Engine, Trainer, data, events, hooks, seed_all

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
train = data.loader((x[:1500], y[:1500]), 50, shuffle=True)
val = data.loader((x[1500:], y[1500:]), 99)

seed_all(0)
body = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
model = nn.Sequential(body, nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
engine = Engine(model, optimizer, nn.CrossEntropyLoss(), lr_scheduler=scheduler, lr_step="epoch")
trainer = Trainer(
    engine,
    [
        *hooks.default(checkpoint=hooks.Checkpoint(best="val/loss")),  # logs the learning rate too
        hooks.Metrics("accuracy"),
        hooks.EarlyStopping("val/loss", patience=3),
        hooks.KeepBest("val/loss"),
        hooks.GradNorm(),
        hooks.FreezeLayers(["0"], until_epoch=2),
        hooks.Write(events.Csv()),
    ],
    run_dir="runs/callbacks",
)
trainer.fit(train, val, epochs=30)
print(f"accuracy: {trainer.evaluate(val)['val/accuracy']:.3f}")
