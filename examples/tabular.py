"""Predict the progress of diabetes from ten measurements of 442 patients.

    python examples/tabular.py
    python examples/tabular.py --epochs 50

The data comes with scikit-learn. Shows regression that ends by itself: `EarlyStopping` stops
when the validation loss no longer falls, `KeepBest` leaves the weights of the best epoch in the
model, and a third part of the data, that neither has seen, judges the result.
"""

import argparse

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import Engine, Trainer, hooks, seed_all


def r2(predictions: Tensor, targets: Tensor) -> float:
    """The share of the variance that is explained: 1 is perfect, 0 is the mean of the targets."""
    unexplained = (targets - predictions).square().sum()
    return float(1 - unexplained / (targets - targets.mean()).square().sum())


def main() -> None:
    parser = argparse.ArgumentParser(description="Regression on scikit-learn's diabetes data.")
    parser.add_argument("--epochs", type=int, default=300, help="at most")
    parser.add_argument("--run-dir", default="runs/tabular")
    parser.add_argument("--fast-dev-run", action="store_true", help="one batch, nothing written")
    args = parser.parse_args()

    seed_all(0)
    data = load_diabetes()
    order = torch.randperm(len(data.target))
    x = torch.tensor(data.data, dtype=torch.float32)[order] * len(order) ** 0.5  # to variance 1
    y = torch.tensor(data.target, dtype=torch.float32)[order, None]
    mean, scale = y[:264].mean(), y[:264].std()
    train = TensorDataset(x[:264], (y[:264] - mean) / scale)
    val = TensorDataset(x[264:353], (y[264:353] - mean) / scale)

    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    stopping = hooks.EarlyStopping("val/loss", patience=20)
    best = hooks.KeepBest("val/loss")
    trainer = Trainer(
        Engine(model, optimizer, nn.MSELoss()),
        hooks=[*hooks.default(), stopping, best],
        run_dir=args.run_dir,
    )
    history = trainer.fit(
        DataLoader(train, batch_size=32, shuffle=True),
        DataLoader(val, batch_size=128),
        epochs=args.epochs,
        fast_dev_run=args.fast_dev_run,
    )

    print(history.stop_reason or f"ended after {trainer.run.epoch} epochs")
    print(f"the weights are those of step {best.step or trainer.run.step}")
    predictions = trainer.predict(x[353:]) * scale + mean
    ours, plain = r2(predictions, y[353:]), r2(mean, y[353:])
    print(f"R2 on 89 held-out patients: {ours:.3f} (predicting the mean: {plain:.3f})")


if __name__ == "__main__":
    main()
