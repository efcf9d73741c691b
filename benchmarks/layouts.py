"""Measure what a layout costs: communication, memory, and the idle time of pipeline stages.

Measured with gloo and compared with theory:

    sent     the numbers that one of two processes passes to each kind of collective in a step
    memory   the parameters, gradients and AdamW state that one of them holds
    idle     the fraction of a step in which two and four pipeline stages wait; they sleep instead
             of computing, so that four stages do not need four cores; the best of three steps

    python benchmarks/layouts.py [sent memory idle]
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

from parallel import (
    BATCH,
    CONTEXT,
    LAYERS,
    LAYOUTS,
    VOCABULARY,
    WARM,
    WIDTH,
    Data,
    adamw,
    report,
    stoker,
    together,
    transformer,
)
from stoker import Engine, Hook, Layout, Trainer
from stoker.core.tree import local_part

# Communication


def sent() -> None:
    model = transformer()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    activations = BATCH * CONTEXT * WIDTH
    report(
        f"\nSent: thousands of numbers per step and process, {parameters / 1e3:.0f} in the model"
    )
    report(f"  {'':36}{'measured':>10}{'theory':>10}  of which")
    theory = {
        "replicate=2": parameters,
        "shard=2": 2 * parameters / 2 + parameters,
        "shard=2, reshard=False": parameters / 2 + parameters,
        "tensor=2": tensor_theory(activations),
        "context=2": context_theory(activations) + parameters,
        "pipeline=2": activations,
    }
    for name, layout in LAYOUTS.items():
        found = numbers_sent(layout)
        kinds = ", ".join(f"{kind} {count / 1e3:.1f}" for kind, count in sorted(found.items()))
        report(f"  {name:36}{sum(found.values()) / 1e3:10.1f}{theory[name] / 1e3:10.1f}  {kinds}")


def tensor_theory(activations: int) -> float:
    """Two sums of an activation each way in a block, one for the embedding and one for the head."""
    scores = BATCH * CONTEXT * VOCABULARY / 2
    return activations * (4 * LAYERS + 1 + 1) + scores


def context_theory(activations: int) -> float:
    """Half of the keys and values of a block, all of their gradients, and both ends of the blocks.

    A process passes what it has to a gather, and what all have to a sum of which it gets a part.
    """
    return LAYERS * (2 * activations / 2 + 2 * activations) + activations


def numbers_sent(layout: Layout) -> Counter[str]:
    """The numbers that this process gives to each kind of exchange in one step."""
    first = Profiled()
    stoker(layout, lambda: [first])(Data(WARM + 2))
    found: Counter[str] = Counter()
    for event in first.events:
        sizes = [prod(shape) for shape in event.input_shapes if shape]
        if event.name.startswith("gloo:") and "recv" not in event.name and sizes:
            found[event.name.removeprefix("gloo:")] += sizes[0]
        elif "reduce_scatter" in event.name and event.name.startswith("c10d::"):
            found["reduce_scatter"] += max(sizes)
            found["all_reduce"] -= max(sizes)  # gloo has no other way
    return +found


class Profiled(Hook):
    """Records one step, the last but one."""

    same_on_all_ranks = True

    def __init__(self) -> None:
        self.events: Any = []
        self._profile = profile(activities=[ProfilerActivity.CPU], record_shapes=True)

    def before_step(self, run: Any) -> None:
        if run.step == WARM:
            self._profile.__enter__()

    def after_step(self, run: Any) -> None:
        if run.step == WARM + 1:
            self._profile.__exit__(None, None, None)
            self.events = self._profile.events()


# What is held


def memory(name: str) -> None:
    layout = LAYOUTS.get(name)
    model = transformer(width=384, layers=8, vocabulary=4096)
    count = sum(parameter.numel() for parameter in model.parameters())
    engine = Engine(model, adamw(model), layout=layout)
    held = Held()
    parts = layout.data_ranks if layout else 1
    loader = DataLoader(torch.randint(4096, (24, CONTEXT + 1)), 8 // parts)  # type: ignore[arg-type]

    def step(engine: Engine, windows: Tensor) -> Tensor:
        scores = engine(windows[:, :-1])
        return nn.functional.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())

    Trainer(engine, [held], step=step).fit(loader, epochs=1)
    if layout is None:
        report(f"\nMemory of one process: MB, {count / 1e6:.1f} million parameters in float32")
        titles = ("parameters", "gradients", "AdamW", "together")
        report(f"  {'':24}{''.join(f'{title:>12}' for title in titles)}")
    sizes = torch.tensor([*held.sizes, sum(held.sizes)])
    dist.all_reduce(sizes, dist.ReduceOp.MAX)  # stages differ: the largest
    report(f"  {name:24}{''.join(f'{size / 1e6:12.1f}' for size in sizes.tolist())}")


class Held(Hook):
    """How many bytes there are after a step."""

    same_on_all_ranks = True
    sizes: tuple[float, float, float]

    def after_step(self, run: Any) -> None:
        optimizer = run.engine.optimizer
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        state = [v for one in optimizer.state.values() for v in one.values()]
        self.sizes = (
            size_of(parameters),
            size_of([p.grad for p in parameters if p.grad is not None]),
            size_of([value for value in state if isinstance(value, Tensor)]),
        )


def size_of(tensors: list[Any]) -> float:
    return float(sum(local_part(t).numel() * t.element_size() for t in tensors))


# Idle time of stages


class Sleep(torch.autograd.Function):
    """Sleeps in the backward pass and, if requested, in the forward pass."""

    slept = 0.0

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: float, backward: float) -> Tensor:
        ctx.backward_seconds = backward
        Sleep.for_seconds(forward)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        Sleep.for_seconds(ctx.backward_seconds)
        return gradients[0].clone(), None, None

    @staticmethod
    def for_seconds(seconds: float) -> None:
        if seconds:
            began = time.perf_counter()
            time.sleep(seconds)
            Sleep.slept += time.perf_counter() - began


class Sleeper(nn.Module):
    """Takes so long forward, as long for the gradient of its input and for that of its weight."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8))
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        seconds = self.seconds
        x = x if x.requires_grad else x.clone().requires_grad_()  # the first stage works as much
        weight = Sleep.apply(self.weight, 0.0, seconds)
        return Sleep.apply(x, seconds, seconds) + weight  # type: ignore[no-any-return]


class Waited(Hook):
    """The share of steps, from the first stage's begin to the last one's end, without sleep."""

    same_on_all_ranks = True

    def __init__(self) -> None:
        self.shares: list[float] = []

    def before_step(self, run: Any) -> None:
        dist.barrier()
        Sleep.slept, self._began = 0.0, time.perf_counter()

    def after_step(self, run: Any) -> None:
        dist.barrier()
        self.shares.append(1 - Sleep.slept / (time.perf_counter() - self._began))


FORMULAS: dict[str, tuple[int, Callable[[int, int], float]]] = {
    "gpipe": (1, lambda p, m: (p - 1) / (m + p - 1)),
    "1f1b": (1, lambda p, m: (p - 1) / (m + p - 1)),
    "interleaved": (2, lambda p, m: (p - 1) / (2 * m + p - 1)),
    "zero-bubble": (1, lambda p, m: (p - 1) / (3 * m + p - 1)),
}


def idle() -> None:
    stages = dist.get_world_size()
    if stages == 2:
        report("\nIdle: the share of a step in which the stages wait, measured and by the formula")
    for kind, (virtual, formula) in FORMULAS.items():
        shown = []
        for microbatches in (stages, 2 * stages, 4 * stages):
            layout = Layout(
                pipeline=stages, schedule=kind, microbatches=microbatches, virtual=virtual
            )
            share = idle_share(layout, stages * virtual, 0.1 / virtual)
            shown.append(f"M={microbatches}: {share:.3f} ({formula(stages, microbatches):.3f})")
        report(f"  {kind:12} P={stages}   {'   '.join(shown)}")


def idle_share(layout: Layout, stages: int, seconds: float) -> float:
    model = nn.Sequential(*(Sleeper(seconds) for _ in range(stages)))
    waited = Waited()
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.0), layout=layout)
    batch = torch.zeros(layout.microbatches or 1, 8)
    trainer = Trainer(engine, [waited], step=lambda engine, batch: engine(batch).sum())
    trainer.fit([batch] * 4, epochs=1)
    shares = torch.tensor(waited.shares[1:])
    dist.all_reduce(shares)
    return float(shares.min()) / dist.get_world_size()


TABLES = ("sent", "memory", "idle")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], default=TABLES)
    tables = parser.parse_args().tables
    if "sent" in tables:
        together(2, sent)
    if "memory" in tables:
        together(1, memory, "one process")
        for name in LAYOUTS:
            together(2, memory, name)
    if "idle" in tables:
        for stages in (2, 4):
            together(stages, idle)


if __name__ == "__main__":
    main()
