"""Predict the progression of diabetes from ten measurements of 442 patients.

    python examples/tabular.py
    python examples/tabular.py --epochs 50

The data comes with scikit-learn. The example shows regression with early stopping: `EarlyStopping`
stops when the validation loss no longer falls, `KeepBest` loads the weights of the best epoch, and
a test set that neither has seen measures the result. The same as a config is tabular.yaml:
stoker train examples/tabular.yaml
"""

import argparse

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import Engine, Trainer, hooks, seed_all


def patients(part: str) -> TensorDataset:
    """Return measurements and progression, both with variance 1: "train", "validate" or "test"."""
    data = load_diabetes()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(data.data, dtype=torch.float32)[order] * len(order) ** 0.5
    y = torch.tensor(data.target, dtype=torch.float32)[order, None]
    y = (y - y[:264].mean()) / y[:264].std()
    rows = {"train": slice(264), "validate": slice(264, 353), "test": slice(353, None)}[part]
    return TensorDataset(x[rows], y[rows])


def net(dropout: float = 0.3) -> nn.Module:
    return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 1))


def r2(predictions: Tensor, targets: Tensor) -> float:
    """Return the explained share of the variance: 1 is perfect, 0 equals predicting the mean."""
    unexplained = (targets - predictions).square().sum()
    return float(1 - unexplained / (targets - targets.mean()).square().sum())


def main() -> None:
    parser = argparse.ArgumentParser(description="Regression on scikit-learn's diabetes data.")
    parser.add_argument("--epochs", type=int, default=300, help="maximum number of epochs")
    parser.add_argument("--run-dir", default="runs/tabular")
    parser.add_argument("--fast-dev-run", action="store_true", help="one batch, nothing written")
    args = parser.parse_args()

    seed_all(0)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    stopping = hooks.EarlyStopping("val/loss", patience=20)
    best = hooks.KeepBest("val/loss")
    trainer = Trainer(
        Engine(model, optimizer, nn.MSELoss()),
        hooks=[*hooks.default(), stopping, best],
        run_dir=args.run_dir,
    )
    history = trainer.fit(
        DataLoader(patients("train"), batch_size=32, shuffle=True),
        DataLoader(patients("validate"), batch_size=128),
        epochs=args.epochs,
        fast_dev_run=args.fast_dev_run,
    )

    print(history.stop_reason or f"ended after {trainer.run.epoch} epochs")
    print(f"the weights are those of step {best.step or trainer.run.step}")
    x, y = patients("test").tensors
    ours, plain = r2(trainer.predict(x), y), r2(torch.zeros(()), y)
    print(f"R2 on 89 held-out patients: {ours:.3f} (predicting the mean: {plain:.3f})")


if __name__ == "__main__":
    main()
