"""The job of examples/cookbook/streaming.py with Lightning."""

import gzip
import json
from pathlib import Path

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics.classification import MulticlassAccuracy

Path("shards").mkdir(exist_ok=True)
x, y = load_digits(return_X_y=True)
for shard in range(6):
    with gzip.open(f"shards/{shard}.jsonl.gz", "wt") as file:
        for image, label in zip(x[shard:1500:6], y[shard:1500:6], strict=True):
            print(json.dumps([[*image], int(label)]), file=file)


class Lines(IterableDataset):
    """Yield the lines of all files, again and again."""

    def __iter__(self):
        while True:
            for path in sorted(Path("shards").iterdir()):
                with gzip.open(path, "rt") as file:
                    for line in file:
                        image, label = json.loads(line)
                        yield torch.tensor(image) / 16, label


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        outputs = self.net(batch[0])
        self.accuracy(outputs, batch[1])
        self.log("val_loss", nn.functional.cross_entropy(outputs, batch[1]))
        self.log("val_accuracy", self.accuracy)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 3e-3)


L.seed_everything(0)
model = Digits()
trainer = L.Trainer(max_steps=200, val_check_interval=50, default_root_dir="runs/streaming")
held_out = zip(torch.tensor(x[1500:] / 16).float(), y[1500:], strict=True)
val = DataLoader(list(held_out), 99)
trainer.fit(model, DataLoader(Lines(), 50), val)
print(f"accuracy: {trainer.validate(model, val)[0]['val_accuracy']:.3f}")
