"""Train a small convnet on the 1,797 handwritten digits that come with scikit-learn.

    python examples/digits.py
    python examples/digits.py --epochs 30 --run-dir runs/longer

This is the usual way: an `Engine`, a `Trainer` with the default hooks, and one metric. The same as
a config is digits.yaml: stoker train examples/digits.yaml
"""

import argparse
import os
import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

from stoker import Engine, Trainer, hooks, seed_all


def digits(part: str, held_out: int = 360) -> Dataset[tuple[Tensor, ...]]:
    """Return 8x8 images and labels: the "train" part, or "held_out", which training never sees."""
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(
        torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16,
        torch.tensor(labels, dtype=torch.int64),
    )
    split = torch.Generator().manual_seed(0)
    train, test = random_split(data, [len(data) - held_out, held_out], split)
    return {"train": train, "held_out": test}[part]


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(64 * 2 * 2, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small convnet on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--run-dir", default="runs/digits")
    parser.add_argument("--fast-dev-run", action="store_true", help="one batch, nothing written")
    args = parser.parse_args()

    torch.set_num_threads(1)  # so small a net gains little from more
    seed_all(0)
    train = DataLoader(digits("train"), batch_size=32, shuffle=True)
    held_out = DataLoader(digits("held_out"), batch_size=360)
    model = convnet()
    engine = Engine(model, torch.optim.Adam(model.parameters(), lr=2e-3), nn.CrossEntropyLoss())
    trainer = Trainer(
        engine, hooks=[*hooks.default(), hooks.Metrics("accuracy")], run_dir=args.run_dir
    )
    trainer.fit(train, held_out, epochs=args.epochs, fast_dev_run=args.fast_dev_run)

    accuracy = trainer.evaluate(held_out)["val/accuracy"]
    print(f"held-out accuracy: {accuracy:.1%}")
    if not args.fast_dev_run:
        print(f"losses, log and weights are in {trainer.run.dir}")
        python = os.path.relpath(sys.executable)
        print(f"next: {python} examples/digits.py --epochs 30 --run-dir runs/longer")
        print(f"      {python} examples/gan.py    (generates new digits)")


if __name__ == "__main__":
    main()
