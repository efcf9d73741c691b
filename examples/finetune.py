"""Learn the digits 0 to 4, then fine-tune the same net to 5 to 9 with its features frozen.

    python examples/finetune.py
    python examples/finetune.py --epochs 10

Shows `FreezeLayers`: frozen layers get no gradients, ``freeze_bn`` keeps the running statistics
of batch norms too, and afterwards not a bit of them has changed.
"""

import argparse
from collections import OrderedDict
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from stoker import Engine, Trainer, hooks, seed_all
from stoker.nn import LayerFreezer

Loader = DataLoader[tuple[Tensor, ...]]
FEATURES = ["conv1", "norm1", "conv2", "norm2"]


def digits(first: int) -> tuple[Loader, Loader]:
    """Training and held-out loaders of five digits from ``first`` on, labelled 0 to 4."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(data.target, dtype=torch.int64) - first
    chosen = (labels >= 0) & (labels < 5)
    train, held_out = random_split(TensorDataset(images[chosen], labels[chosen]), [0.8, 0.2])
    return DataLoader(train, batch_size=32, shuffle=True), DataLoader(held_out, batch_size=256)


def net() -> nn.Sequential:
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(1, 16, 3), "norm1": nn.BatchNorm2d(16), "relu1": nn.ReLU(),
        "conv2": nn.Conv2d(16, 32, 3), "norm2": nn.BatchNorm2d(32), "relu2": nn.ReLU(),
        "flat": nn.Flatten(), "head": nn.Linear(32 * 4 * 4, 5),
    }  # fmt: skip
    return nn.Sequential(OrderedDict(layers))


def features(model: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter and running statistic below the head."""
    state = model.state_dict()
    return {name: state[name].clone() for name in state if not name.startswith("head")}


def learn(model: nn.Module, first: int, args: argparse.Namespace, *more: hooks.Hook) -> float:
    """The held-out accuracy after training on five digits from ``first`` on."""
    engine = Engine(model, torch.optim.Adam(model.parameters(), lr=2e-3), nn.CrossEntropyLoss())
    trainer = Trainer(
        engine,
        hooks=[*hooks.default(), hooks.Metrics("accuracy"), *more],
        run_dir=Path(args.run_dir) / f"from-{first}",
    )
    train, held_out = digits(first)
    trainer.fit(train, held_out, epochs=args.epochs, fast_dev_run=args.fast_dev_run)
    return trainer.evaluate(held_out)["val/accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune a digit net with frozen layers.")
    parser.add_argument("--epochs", type=int, default=5, help="of each of the two trainings")
    parser.add_argument("--run-dir", default="runs/finetune")
    parser.add_argument("--fast-dev-run", action="store_true", help="one batch, nothing written")
    args = parser.parse_args()

    seed_all(0)
    model = net()
    print(f"digits 0 to 4, all layers: held-out accuracy {learn(model, 0, args):.1%}")

    before = features(model)
    model.head.reset_parameters()
    accuracy = learn(model, 5, args, hooks.FreezeLayers(FEATURES, freeze_bn=True))
    print(f"digits 5 to 9, head alone: held-out accuracy {accuracy:.1%}")

    changed = [name for name, value in features(model).items() if not value.equal(before[name])]
    print(f"frozen layers: {', '.join(LayerFreezer(model).show_frozen_layers())}")
    print(f"changed below the head: {', '.join(changed) or 'nothing'}")


if __name__ == "__main__":
    main()
