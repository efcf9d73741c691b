"""The job of examples/cookbook/streaming.py with the Hugging Face Trainer."""

import gzip
import json
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainingArguments, set_seed

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
                        yield {"pixels": torch.tensor(image) / 16, "labels": label}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, pixels, labels=None):
        logits = self.net(pixels)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def accuracy(prediction):
    return {"accuracy": (prediction.predictions.argmax(1) == prediction.label_ids).mean()}


set_seed(0)
args = TrainingArguments(
    "runs/streaming",
    max_steps=200,
    per_device_train_batch_size=50,
    per_device_eval_batch_size=99,
    learning_rate=3e-3,
    lr_scheduler_type="constant",
    eval_strategy="steps",
    eval_steps=50,
)
held_out = zip(torch.tensor(x[1500:] / 16).float(), y[1500:], strict=True)
val = [{"pixels": image, "labels": label} for image, label in held_out]
trainer = Trainer(Net(), args, train_dataset=Lines(), eval_dataset=val, compute_metrics=accuracy)
trainer.train()
print(f"accuracy: {trainer.evaluate()['eval_accuracy']:.3f}")
