"""Measure how many bytes each save writes, if parts of the model are frozen.

    python benchmarks/frozen.py [--layers 24] [--saves 5]

A stack of linear layers trains with Adam for one step between two saves: all of it, its last layer
alone, or adapters of rank 8 (LoRA). The bytes are those that the kernel counts for this process.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from stoker.checkpoint import Checkpoints

WIDTH, RANK = 2048, 8


class Adapted(nn.Module):
    """A linear layer, and a product of two small matrices that is added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, RANK, bias=False)
        self.up = nn.Linear(RANK, WIDTH, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.base(inputs) + self.up(self.down(inputs))


def trained(model: nn.Sequential, kind: str) -> list[nn.Parameter]:
    chosen = {
        "all": lambda name: True,
        "last layer": lambda name: name.startswith(f"{len(model) - 1}."),
        "adapters": lambda name: "base" not in name,
    }[kind]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(chosen(name))
    return [one for one in model.parameters() if one.requires_grad]


def written() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("write_bytes")).split()[1])


def measure(kind: str, layers: int, saves: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Adapted() for _ in range(layers)))
    optimizer = torch.optim.Adam(trained(model, kind), 1e-4, fused=True)
    counts = []
    with tempfile.TemporaryDirectory(dir=".") as folder, Checkpoints(folder, keep=2) as checkpoints:
        for step in range(saves):
            before = written()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            path = checkpoints.save(step, state, wait=True)
            counts.append(written() - before)
            model(torch.randn(2, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        size = sum(file.stat().st_size for file in path.iterdir())
    shown = "".join(f"{count / 1e6:9.1f}" for count in counts)
    print(f"{kind:12}{size / 1e6:12.1f} MB{shown} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--saves", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'trained':12}{'checkpoint':>15}   written by each save")
    for kind in ("all", "last layer", "adapters"):
        measure(kind, options.layers, options.saves)


if __name__ == "__main__":
    main()
