"""The job of examples/cookbook/optuna_search.py with Lightning."""

import lightning as L
import optuna
import torch
from optuna_integration import PyTorchLightningPruningCallback
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


class Digits(L.LightningModule):
    def __init__(self, width, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        outputs = self.net(batch[0])
        self.accuracy(outputs, batch[1])
        self.log("val_loss", nn.functional.cross_entropy(outputs, batch[1]))
        self.log("val_accuracy", self.accuracy)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams.lr)


def objective(trial):
    L.seed_everything(0)
    width = trial.suggest_int("width", 8, 64)
    model = Digits(width, trial.suggest_float("lr", 1e-4, 1e-1, log=True))
    trainer = L.Trainer(
        max_epochs=6,
        callbacks=[PyTorchLightningPruningCallback(trial, "val_accuracy")],
        default_root_dir=f"runs/optuna/{trial.number}",
    )
    train = DataLoader(TensorDataset(x[:1500], y[:1500]), 50, shuffle=True)
    trainer.fit(model, train, DataLoader(TensorDataset(x[1500:], y[1500:]), 99))
    return trainer.callback_metrics["val_accuracy"].item()


study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(objective, n_trials=8)
print(f"best accuracy: {study.best_value:.3f}")
