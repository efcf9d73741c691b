"""Train on files that are read line by line, for a number of steps."""

import gzip
import json
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from stoker import Engine, Trainer, hooks, seed_all

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


seed_all(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
engine = Engine(model, torch.optim.Adam(model.parameters(), 3e-3), nn.CrossEntropyLoss())
watch = [*hooks.default(checkpoint=hooks.Checkpoint("50st")), hooks.Metrics("accuracy")]
trainer = Trainer(engine, watch, run_dir="runs/streaming")
val = DataLoader(list(zip(torch.tensor(x[1500:] / 16).float(), y[1500:], strict=True)), 99)
trainer.fit(DataLoader(Lines(), 50), val, max_steps=200, validate_every="50st")
print(f"accuracy: {trainer.evaluate(val)['val/accuracy']:.3f}")
