"""Measure what `compile` costs at the first step and saves later, on the models of the examples.

Each mode runs in a separate process with empty caches. The first step is given in CPU seconds,
including those of the compiler's processes, because wall time means little on a busy machine.
Later steps are given as the median ratio to the same model without compilation, which alternates
with it in the same process.

    python benchmarks/compile.py [--steps 40]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from stoker import Engine
from stoker.nn import Transformer

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))


def digits() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    from digits import convnet

    return convnet(), torch.randn(32, 1, 8, 8), torch.randint(0, 10, (32,))


def tabular() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    net = nn.Sequential(
        nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )
    return net, torch.randn(64, 30), torch.randint(0, 2, (64,))


def text(layers: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Transformer(97, 64, width=64, layers=layers)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.net(tokens).flatten(0, 1)

    tokens = torch.randint(0, 97, (32, 64))
    return Flat(), tokens, tokens.flatten()


CASES: dict[str, Callable[[], tuple[nn.Module, torch.Tensor, torch.Tensor]]] = {
    "tabular net": tabular,
    "digits convnet": digits,
    "text, 2 blocks": lambda: text(2),
    "text, 8 blocks": lambda: text(8),
}


def engine_of(case: str, how: bool | str) -> Callable[[], None]:
    torch.manual_seed(0)
    model, x, y = CASES[case]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    engine = Engine(model, optimizer, nn.CrossEntropyLoss(), device="cpu", compile=how)

    def step() -> None:
        engine.zero_grad()
        engine.backward(engine.criterion(engine(x), y))
        engine.step()

    return step


def processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def measure(case: str, how: bool | str, steps: int) -> None:
    torch.set_num_threads(1)
    plain, compiled = engine_of(case, False), engine_of(case, how)
    plain()
    began = processor_seconds()
    compiled()
    first = processor_seconds() - began
    ratios = []
    for number in range(steps + 5):
        seconds = []
        for step in (plain, compiled):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        if number >= 5:
            ratios.append(seconds[1] / seconds[0])
    print(f"| {case} | `{how!r}` | {first:.1f} s | {statistics.median(ratios):.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--case", choices=CASES, help="measure this case in this process")
    parser.add_argument("--how", default="True")
    options = parser.parse_args()
    if options.case:
        how = True if options.how == "True" else options.how
        measure(options.case, how, options.steps)
        return
    print("| model | `compile` | first step | later steps |\n|---|---|---|---|", flush=True)
    for case in CASES:
        for how in ("True", "blocks") if case.startswith("text") else ("True",):
            with tempfile.TemporaryDirectory() as cache:
                # its helpers end before it, so that their time counts
                environment = {
                    "TORCHINDUCTOR_CACHE_DIR": cache,
                    "TORCHINDUCTOR_COMPILE_THREADS": "1",
                }
                command = [sys.executable, __file__, "--case", case, "--how", how]
                subprocess.run(
                    [*command, "--steps", str(options.steps)],
                    env={**os.environ, **environment},
                    check=True,
                )


if __name__ == "__main__":
    main()
