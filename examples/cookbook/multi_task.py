"""One body with two heads, validated on clean and on noisy images."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from stoker import Engine, Trainer, data, hooks, seed_all

seed_all(0)
x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
targets = {"digit": y, "parity": y % 2}
noisy = x[1500:] + 0.3 * torch.randn(297, 64)
val_targets = {head: labels[1500:] for head, labels in targets.items()}


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.heads = nn.ModuleDict({"digit": nn.Linear(64, 10), "parity": nn.Linear(64, 2)})

    def forward(self, x):
        features = self.body(x)
        return {name: head(features) for name, head in self.heads.items()}


def losses(outputs, targets):
    return {head: nn.functional.cross_entropy(outputs[head], targets[head]) for head in outputs}


model = TwoHeads()
engine = Engine(model, torch.optim.Adam(model.parameters(), 3e-3), losses)
measure = hooks.Metrics("accuracy", heads=["digit", "parity"])
trainer = Trainer(engine, [*hooks.default(), measure], run_dir="runs/multi_task")
train = data.loader((x[:1500], {head: labels[:1500] for head, labels in targets.items()}), 50, True)
val = {
    "clean": data.loader((x[1500:], val_targets), 99),
    "noisy": data.loader((noisy, val_targets), 99),
}
trainer.fit(train, val, epochs=8)
print(f"accuracy on noisy images: {trainer.evaluate(val)['val/noisy/digit/accuracy']:.3f}")
