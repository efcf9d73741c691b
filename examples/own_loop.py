"""Write your own loop with an `Engine` and nothing else of Stoker.

    python examples/own_loop.py
    python examples/own_loop.py --precision bf16

The engine mirrors PyTorch's calls and handles device, precision, clipping and the learning rate, so
the loop is the one you would write anyway. The same training without your own loop is
own_loop_config.py: stoker train examples/own_loop_config.py
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_model
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import Engine
from stoker.nn import lr


def digits(part: str) -> TensorDataset:
    """Return images of 64 numbers and labels: the "train" or the "held_out" part."""
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32) / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    rows = order[:-360] if part == "train" else order[-360:]
    return TensorDataset(images[rows], torch.tensor(data.target)[rows])


def main() -> None:
    parser = argparse.ArgumentParser(description="Your own training loop around an Engine.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/own_loop"))
    args = parser.parse_args()

    torch.manual_seed(0)
    train, (images, labels) = digits("train"), digits("held_out").tensors
    loader = DataLoader(train, batch_size=32, shuffle=True)

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    engine = Engine(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        lr_scheduler=lr.cosine(optimizer, args.epochs * len(loader)),
        precision=args.precision,
        clip_norm=1.0,
    )

    for epoch in range(1, args.epochs + 1):
        engine.train()
        total = torch.zeros((), device=engine.device)
        for x, y in loader:
            engine.zero_grad()
            loss = engine.criterion(engine(x), y)
            engine.backward(loss)
            engine.step()  # clip, optimizer, learning rate
            total += loss.detach() * len(x)
        engine.eval()
        with torch.no_grad():
            guesses = engine(images).argmax(1).cpu()
        accuracy = (guesses == labels).float().mean()
        print(f"epoch {epoch}  loss {total / len(train):.4f}  held-out accuracy {accuracy:.1%}")

    args.run_dir.mkdir(parents=True, exist_ok=True)
    save_model(model, str(args.run_dir / "model.safetensors"))
    print(f"the weights are in {args.run_dir / 'model.safetensors'}")


if __name__ == "__main__":
    main()
