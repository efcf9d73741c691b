"""Search learning rate and width with Optuna, and prune what does not look promising."""

import optuna
import torch
from sklearn.datasets import load_digits
from torch import nn

from stoker import Engine, Trainer, data, hooks, seed_all

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def objective(trial):
    seed_all(0)
    width = trial.suggest_int("width", 8, 64)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    engine = Engine(model, torch.optim.Adam(model.parameters(), lr), nn.CrossEntropyLoss())
    prune = hooks.Prune(trial, "val/accuracy")
    watch = [*hooks.default(progress=False), hooks.Metrics("accuracy"), prune]
    trainer = Trainer(engine, watch, run_dir=f"runs/optuna/{trial.number}")
    train, val = data.loader((x[:1500], y[:1500]), 50, True), data.loader((x[1500:], y[1500:]), 99)
    history = trainer.fit(train, val, epochs=6)
    prune.check()
    return history["val/accuracy"][-1]


study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(objective, n_trials=8)
print(f"best accuracy: {study.best_value:.3f}")
