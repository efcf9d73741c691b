"""The job of examples/cookbook/optuna_search.py with the Hugging Face Trainer."""

import optuna
import torch
from sklearn.datasets import load_digits
from torch import nn
from transformers import Trainer, TrainingArguments

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
rows = [{"pixels": image, "labels": label} for image, label in zip(x, y, strict=True)]


class Net(nn.Module):
    def __init__(self, trial):
        super().__init__()
        width = trial.suggest_int("width", 8, 64) if trial else 8
        self.net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, pixels, labels=None):
        logits = self.net(pixels)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def accuracy(prediction):
    return {"accuracy": (prediction.predictions.argmax(1) == prediction.label_ids).mean()}


args = TrainingArguments(
    "runs/optuna",
    num_train_epochs=6,
    per_device_train_batch_size=50,
    per_device_eval_batch_size=99,
    lr_scheduler_type="constant",
    eval_strategy="epoch",
    disable_tqdm=True,
)
trainer = Trainer(
    args=args,
    model_init=Net,
    train_dataset=rows[:1500],
    eval_dataset=rows[1500:],
    compute_metrics=accuracy,
)
best = trainer.hyperparameter_search(
    hp_space=lambda trial: {"learning_rate": trial.suggest_float("lr", 1e-4, 1e-1, log=True)},
    compute_objective=lambda scores: scores["eval_accuracy"],
    direction="maximize",
    backend="optuna",
    n_trials=8,
    sampler=optuna.samplers.TPESampler(seed=0),
)
print(f"best accuracy: {best.objective:.3f}")
