"""Classify digits that worker processes shift at random."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import Engine, Trainer, hooks, seed_all
from stoker.data import SeededDataset

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(y)


class Shifted(Dataset):
    """Move each image by up to one pixel, another way each time it is read."""

    def __len__(self):
        return 1500

    def __getitem__(self, index):
        top, left = torch.randint(0, 3, (2,)).tolist()
        return nn.functional.pad(x[index], [1] * 4)[:, top : top + 8, left : left + 8], y[index]


seed_all(0)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32 * 36, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
)
train = DataLoader(
    SeededDataset(Shifted()), 50, shuffle=True, num_workers=2, persistent_workers=True
)
val = DataLoader(list(zip(x[1500:], y[1500:], strict=True)), 99)
engine = Engine(model, torch.optim.Adam(model.parameters(), 3e-3), nn.CrossEntropyLoss())
trainer = Trainer(engine, [*hooks.default(), hooks.Metrics("accuracy")], run_dir="runs/augmented")
trainer.fit(train, val, epochs=6)
print(f"accuracy: {trainer.evaluate(val)['val/accuracy']:.3f}")
