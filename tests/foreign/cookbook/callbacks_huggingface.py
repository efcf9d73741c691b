"""The job of examples/cookbook/callbacks.py with the Hugging Face Trainer."""

import json
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from transformers import (
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
rows = [{"pixels": image, "labels": label} for image, label in zip(x, y, strict=True)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)

    def forward(self, pixels, labels=None):
        logits = self.head(self.body(pixels))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Unfreeze(TrainerCallback):
    def on_epoch_begin(self, args, state, control, model, **kwargs):
        model.body.requires_grad_(state.epoch >= 2)


def accuracy(prediction):
    return {"accuracy": (prediction.predictions.argmax(1) == prediction.label_ids).mean()}


set_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9 ** (step // 30))
args = TrainingArguments(
    "runs/callbacks",
    num_train_epochs=30,
    per_device_train_batch_size=50,
    per_device_eval_batch_size=99,
    logging_steps=30,
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=3,
    load_best_model_at_end=True,
)
trainer = Trainer(
    model,
    args,
    train_dataset=rows[:1500],
    eval_dataset=rows[1500:],
    compute_metrics=accuracy,
    optimizers=(optimizer, scheduler),
    callbacks=[EarlyStoppingCallback(3), Unfreeze()],
)
trainer.train()
Path("runs/callbacks/log.json").write_text(json.dumps(trainer.state.log_history))
print(f"accuracy: {trainer.evaluate()['eval_accuracy']:.3f}")
