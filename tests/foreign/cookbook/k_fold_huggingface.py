"""The job of examples/cookbook/k_fold.py with the Hugging Face Trainer."""

import torch
from sklearn.datasets import load_wine
from sklearn.model_selection import KFold
from torch import nn
from torch.utils.data import Subset
from transformers import Trainer, TrainingArguments, set_seed

x, y = load_wine(return_X_y=True)
x, y = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32), torch.tensor(y)
rows = [{"measures": one, "labels": label} for one, label in zip(x, y, strict=True)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, measures, labels=None):
        logits = self.net(measures)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def accuracy(prediction):
    return {"accuracy": (prediction.predictions.argmax(1) == prediction.label_ids).mean()}


accuracies = []
for fold, (train, val) in enumerate(KFold(5, shuffle=True, random_state=0).split(x)):
    set_seed(fold)
    args = TrainingArguments(
        f"runs/k_fold/{fold}",
        num_train_epochs=10,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=64,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        eval_strategy="epoch",
    )
    sets = {"train_dataset": Subset(rows, train), "eval_dataset": Subset(rows, val)}
    trainer = Trainer(Net(), args, compute_metrics=accuracy, **sets)
    trainer.train()
    accuracies.append(trainer.evaluate()["eval_accuracy"])
spread, mean = torch.std_mean(torch.tensor(accuracies))
print(f"accuracy: {mean:.3f} ± {spread:.3f}")
