"""Train a net on the digits 0 to 4, then fine-tune it on 5 to 9 with its features frozen.

    python examples/finetune.py
    python examples/finetune.py --epochs 10

The example shows `FreezeLayers`: frozen layers get no gradients, and ``freeze_bn`` also keeps the
running statistics of batch norms, so that not a bit of them changes. The same as configs is
pretrain.yaml and finetune.yaml.
"""

import argparse
from collections import OrderedDict
from pathlib import Path

import torch
from safetensors.torch import load_model
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

from stoker import Engine, Trainer, hooks, seed_all
from stoker.nn import LayerFreezer

FEATURES = ["conv1", "norm1", "conv2", "norm2"]


def digits(part: str, first: int) -> Dataset[tuple[Tensor, ...]]:
    """Return the five digits from ``first`` on, labelled 0 to 4: "train" or "held_out" part."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(data.target, dtype=torch.int64) - first
    chosen = (labels >= 0) & (labels < 5)
    split = torch.Generator().manual_seed(0)
    parts = random_split(TensorDataset(images[chosen], labels[chosen]), [0.8, 0.2], split)
    return parts[part == "held_out"]


def net() -> nn.Sequential:
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(1, 16, 3), "norm1": nn.BatchNorm2d(16), "relu1": nn.ReLU(),
        "conv2": nn.Conv2d(16, 32, 3), "norm2": nn.BatchNorm2d(32), "relu2": nn.ReLU(),
        "flat": nn.Flatten(), "head": nn.Linear(32 * 4 * 4, 5),
    }  # fmt: skip
    return nn.Sequential(OrderedDict(layers))


def pretrained(weights: str) -> nn.Module:
    """Load the weights of a file into the net, and reset its head."""
    model = net()
    load_model(model, weights)
    model.head.reset_parameters()
    return model


def features(model: nn.Module) -> dict[str, Tensor]:
    """Copy every parameter and running statistic below the head."""
    state = model.state_dict()
    return {name: state[name].clone() for name in state if not name.startswith("head")}


def learn(model: nn.Module, first: int, args: argparse.Namespace, *more: hooks.Hook) -> float:
    """Train on the five digits from ``first`` on, and return the held-out accuracy."""
    engine = Engine(model, torch.optim.Adam(model.parameters(), lr=2e-3), nn.CrossEntropyLoss())
    trainer = Trainer(
        engine,
        hooks=[*hooks.default(), hooks.Metrics("accuracy"), *more],
        run_dir=Path(args.run_dir) / f"from-{first}",
    )
    train = DataLoader(digits("train", first), batch_size=32, shuffle=True)
    held_out = DataLoader(digits("held_out", first), batch_size=256)
    trainer.fit(train, held_out, epochs=args.epochs, fast_dev_run=args.fast_dev_run)
    return trainer.evaluate(held_out)["val/accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune a digit net with frozen layers.")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of each of the two runs")
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
