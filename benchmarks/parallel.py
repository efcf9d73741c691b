"""Measure the overhead of Stoker over a hand-written loop in several processes.

Two processes with gloo, one thread each, train the transformer of `stoker.nn`, with Stoker's
Trainer and by hand with torch's own parts, on the same data, to the same loss; and a Llama of
transformers, if it is installed, as a pipeline. Combinations of layouts need four processes. Rounds
alternate, and each starts with another loop; the start of a fit is not counted. The ratios are
those of the fastest quarter of all steps, of the median step, and of the CPU time of the median
round, without waiting.

    python benchmarks/parallel.py [--rounds 8] [--steps 24] [--only "tensor=2;context=2"] [--short]
"""

import argparse
import io
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing, nn
from torch.distributed import pipelining
from torch.distributed._functional_collectives import all_gather_tensor_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm
from torch.utils.data import DataLoader, DistributedSampler

from stoker import Engine, Hook, Layout, Output, Trainer, hooks
from stoker.nn import Transformer
from stoker.parallel.pipeline.stage_plan import plan_stages

VOCABULARY, CONTEXT, WIDTH, LAYERS = 256, 64, 128, 4
BATCH = 16  # over both processes
MICROBATCHES = 4
WARM = 4  # the first steps of a loop are not counted

LAYOUTS = {
    "replicate=2": Layout(replicate=2),
    "shard=2": Layout(shard=2),
    "shard=2, reshard=False": Layout(shard=2, reshard=False),
    "tensor=2": Layout(tensor=2),
    "context=2": Layout(context=2),
    "pipeline=2": Layout(pipeline=2, microbatches=MICROBATCHES),
}


class Data:
    """Windows of tokens; records when each batch was fetched, and the last loss."""

    def __init__(self, steps: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.windows = torch.randint(VOCABULARY, (steps * BATCH, CONTEXT + 1), generator=generator)
        self.fetched: list[tuple[float, float]] = []
        self.loss = torch.zeros(())

    def loader(self, parts: int, *, divided: bool = False, part: int | None = None) -> Any:
        """Batches for one of so many processes; ``divided`` by torch's own sampler."""
        data: Any = self.windows
        sampler = DistributedSampler(data, parts, part, shuffle=False) if divided else None
        return DataLoader(data, BATCH // parts, sampler=sampler, collate_fn=self._fetch)

    def compute_loss(self, scores: Tensor, windows: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())
        self.loss = loss.detach()
        return loss

    def step_times(self) -> list[float]:
        """Milliseconds of each step by the clock, without the first ones."""
        return [(end - begin) * 1000 for (begin, _), (end, _) in pairwise(self.fetched[WARM:])]

    def processor_time(self) -> float:
        """Milliseconds per step of all processors, without the first steps."""
        spent = torch.tensor(self.fetched[-1][1] - self.fetched[WARM][1])
        dist.all_reduce(spent)
        return float(spent) * 1000 / (len(self.fetched) - 1 - WARM)

    def _fetch(self, windows: list[Tensor]) -> Tensor:
        self.fetched.append((time.perf_counter(), time.thread_time()))
        return torch.stack(windows)


Loop: TypeAlias = Callable[[Data], Any]


def transformer(width: int = WIDTH, layers: int = LAYERS, vocabulary: int = VOCABULARY) -> Any:
    torch.manual_seed(0)
    return Transformer(vocabulary, CONTEXT, width=width, layers=layers)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


# Loops by hand


def ddp(data: Data) -> None:
    _by_hand(DistributedDataParallel(transformer()), data)


def fsdp(data: Data) -> None:
    model = transformer()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    _by_hand(model, data)


def _by_hand(model: nn.Module, data: Data) -> None:
    optimizer = adamw(model)
    for windows in data.loader(dist.get_world_size(), divided=True):
        optimizer.zero_grad()
        data.compute_loss(model(windows[:, :-1]), windows).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def _mesh(**sizes: int) -> DeviceMesh:
    return init_device_mesh("cpu", (*sizes.values(),), mesh_dim_names=(*sizes,))


def copied_shards(data: Data) -> None:
    model, mesh = transformer(), _mesh(replicate=2, shard=2)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    _by_hand(model, data)


def _split_layers(model: Any, mesh: DeviceMesh) -> None:
    """Split layers by torch's own styles."""
    once = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    layers = {f"attn.{name}": ColwiseParallel() for name in "qkv"} | {"mlp.up": ColwiseParallel()}
    layers |= {"attn.o": RowwiseParallel(), "mlp.down": RowwiseParallel()}
    plan = {f"blocks.*.{name}": style for name, style in layers.items()}
    plan |= {"blocks.*.attn": once, "head": ColwiseParallel(output_layouts=Replicate())}
    plan |= {"embed.tokens": RowwiseParallel(input_layouts=Replicate())}
    parallelize_module(model, mesh, plan)


def tensor(data: Data) -> None:
    model = transformer()
    _split_layers(model, _mesh(tensor=2))
    _with_plain_parts(model, data, 1)


def sharded_tensor(data: Data) -> None:
    model, mesh = transformer(), _mesh(shard=2, tensor=2)
    _split_layers(model, mesh["tensor"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    _with_plain_parts(model, data, 2, mesh["shard"].get_local_rank())


def _with_plain_parts(model: nn.Module, data: Data, parts: int, part: int = 0) -> None:
    """Train a model of which some parameters are split over more processes than others."""
    groups = _groups(model)
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=1e-3)
    for windows in data.loader(parts, divided=True, part=part):
        optimizer.zero_grad()
        data.compute_loss(model(windows[:, :-1]), windows).backward()
        _clip(groups)
        optimizer.step()


def _groups(model: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters that torch can update and measure together."""
    found: dict[Any, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        key = parameter.device_mesh if isinstance(parameter, DTensor) else None
        found.setdefault(key, []).append(parameter)
    return [*found.values()]


def _clip(groups: list[list[nn.Parameter]], group: Any = None) -> None:
    square = torch.zeros(())
    for parameters in groups:
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        square = square + norm.square()
    if group is not None:
        dist.all_reduce(square, group=group)
    for parameters in groups:
        clip_grads_with_norm_(parameters, 1.0, square.sqrt())


class GatheredAttention(nn.Module):
    """Attention of the positions of this process to those of all."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = attention.q, attention.k, attention.v, attention.o
        self.head_dim = attention.head_dim

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        everybody = dist.group.WORLD
        k, v = (all_gather_tensor_autograd(one.contiguous(), 2, everybody) for one in (k, v))
        rows = torch.arange(q.shape[2]) + dist.get_rank() * q.shape[2]
        mask = rows[:, None] >= torch.arange(k.shape[2])
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def context(data: Data) -> None:
    """Run the blocks on parts of the sequence; scores and loss are complete, as in Stoker."""
    model, rank = transformer(), dist.get_rank()
    for block in model.blocks:
        block.attn = GatheredAttention(block.attn)
    optimizer = adamw(model)
    for windows in data.loader(1):
        optimizer.zero_grad()
        part = model.embed(windows[:, :-1]).chunk(2, 1)[rank]
        x = all_gather_tensor_autograd(model.blocks(part).contiguous(), 1, dist.group.WORLD)
        data.compute_loss(model.head(model.norm(x)), windows).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, dist.ReduceOp.AVG)
        for gradient, mean in zip(
            gradients, flat.split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(mean.view_as(gradient))
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def pipeline(data: Data) -> None:
    model, rank = transformer(), dist.get_rank()
    parts = [model.get_submodule(name) for name in plan_stages(model, 2)[rank]]
    _pipeline_by_hand(nn.Sequential(*parts), data)


def split_stages(data: Data) -> None:
    """Stages of split layers."""
    model, mesh = transformer(), _mesh(pipeline=2, tensor=2)
    _split_layers(model, mesh["tensor"])
    number = mesh["pipeline"].get_local_rank()
    parts = [model.get_submodule(name) for name in plan_stages(model, 2)[number]]
    _pipeline_by_hand(nn.Sequential(*parts), data, mesh.get_group("pipeline"))


def sharded_stages(data: Data) -> None:
    """Stages in shards."""
    model, mesh = transformer(), _mesh(pipeline=2, shard=2)
    number = mesh["pipeline"].get_local_rank()
    parts = [model.get_submodule(name) for name in plan_stages(model, 2)[number]]
    stage = nn.Sequential(*parts)
    for part in parts:
        if any(part is block for block in model.blocks):
            fully_shard(part, mesh=mesh["shard"])
    fully_shard(stage, mesh=mesh["shard"])
    shard = (2, mesh["shard"].get_local_rank())
    _pipeline_by_hand(stage, data, mesh.get_group("pipeline"), shard)


class LlamaStage(nn.Module):
    """The embedding and first layers of a Llama, or its other layers and its head."""

    def __init__(self, model: Any, rank: int) -> None:
        super().__init__()
        layers = sum(".layers." in name for name in plan_stages(model, 2)[0])
        self.embed = nn.Identity() if rank else model.model.embed_tokens
        self.layers = model.model.layers[layers:] if rank else model.model.layers[:layers]
        self.head = nn.Sequential(model.model.norm, model.lm_head) if rank else nn.Identity()
        self.rotary = model.model.rotary_emb

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        positions = torch.arange(x.shape[1])[None]
        tables = self.rotary(x, positions)
        for layer in self.layers:
            x = layer(x, attention_mask=None, position_ids=positions, position_embeddings=tables)
        return self.head(x)  # type: ignore[no-any-return]


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": LAYERS}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_attention_heads=4, **sizes))


def llama_by_hand(data: Data) -> None:
    _pipeline_by_hand(LlamaStage(llama(), dist.get_rank()), data)


def _pipeline_by_hand(
    stage: nn.Module, data: Data, group: Any = None, part: tuple[int, int] = (1, 0)
) -> None:
    number = dist.get_rank(group)
    groups = _groups(stage)
    optimizer = torch.optim.AdamW([{"params": one} for one in groups], lr=1e-3)
    piped = pipelining.PipelineStage(stage, number, 2, torch.device("cpu"), group=group)
    schedule = pipelining.Schedule1F1B(piped, MICROBATCHES, loss_fn=data.compute_loss)
    for windows in data.loader(part[0], divided=True, part=part[1]):
        optimizer.zero_grad()
        given = [] if number else [windows[:, :-1]]
        schedule.step(*given, target=windows if number else None, return_outputs=False)
        _clip(groups, group or dist.group.WORLD)
        optimizer.step()


# The same with Stoker


def stoker(
    layout: Layout,
    make_hooks: Callable[[], list[Hook]],
    *,
    by_tokens: bool = False,
    **size: int,
) -> Loop:
    def loop(data: Data) -> Engine:
        def step(engine: Engine, windows: Tensor) -> Output:
            scores = engine(windows[:, :-1])
            loss = data.compute_loss(scores, windows)
            return Output(loss, weight=windows[:, 1:].numel() if by_tokens else None)

        model = transformer(**size)
        engine = Engine(model, adamw(model), layout=layout, clip_norm=1.0)
        Trainer(engine, make_hooks(), step=step).fit(data.loader(layout.data_ranks), epochs=1)
        return engine

    return loop


def llama_by_stoker(data: Data) -> None:
    def step(engine: Engine, windows: Tensor) -> Tensor:
        return data.compute_loss(engine(input_ids=windows[:, :-1]).logits, windows)

    model = llama()
    engine = Engine(model, adamw(model), layout=LAYOUTS["pipeline=2"], clip_norm=1.0)
    Trainer(engine, [], step=step).fit(data.loader(1), epochs=1)


class Terminal(io.StringIO):
    """A fake terminal, so that the progress bar is drawn."""

    def isatty(self) -> bool:
        return True


def bare(by_hand: Loop, by_stoker: Loop) -> dict[str, Loop]:
    return {
        "by hand": by_hand,
        "by hand again (noise)": by_hand,
        "Trainer, nothing on": by_stoker,
    }


def against_hand(by_hand: Loop, layout: Layout) -> dict[str, Loop]:
    return bare(by_hand, stoker(layout, list)) | {
        "Trainer, defaults": stoker(layout, hooks.default),
        "Trainer, defaults, loss by tokens": stoker(layout, hooks.default, by_tokens=True),
    }


def of_four(by_hand: Loop, layout: Layout) -> tuple[int, dict[str, Loop]]:
    return 4, bare(by_hand, stoker(layout, list))


PIPED = {"pipeline": 2, "microbatches": MICROBATCHES}
COMPARISONS: dict[str, tuple[int, dict[str, Loop]]] = {
    "replicate=2": (2, against_hand(ddp, LAYOUTS["replicate=2"])),
    "shard=2": (2, against_hand(fsdp, LAYOUTS["shard=2"])),
    "tensor=2": (2, against_hand(tensor, LAYOUTS["tensor=2"])),
    "context=2": (2, against_hand(context, LAYOUTS["context=2"])),
    "pipeline=2": (2, against_hand(pipeline, LAYOUTS["pipeline=2"])),
    "replicate=2, shard=2": of_four(copied_shards, Layout(replicate=2, shard=2)),
    "shard=2, tensor=2": of_four(sharded_tensor, Layout(shard=2, tensor=2)),
    "pipeline=2, tensor=2": of_four(split_stages, Layout(**PIPED, tensor=2)),
    "pipeline=2, shard=2": of_four(sharded_stages, Layout(**PIPED, shard=2)),
}
if find_spec("transformers") is not None:
    COMPARISONS["a Llama of transformers, pipeline=2"] = (2, bare(llama_by_hand, llama_by_stoker))


def step_times(processes: int, only: list[str], short: bool, rounds: int, steps: int) -> None:
    for name in only:
        count, loops = COMPARISONS[name]
        if count != processes:
            continue
        loops = {n: loop for n, loop in loops.items() if not short or "defaults" not in n}
        report(f"\n{name}: ms per step ({rounds} rounds of {steps - 1 - WARM} steps)")
        titles = ("quarter", "median", "ratio", "of medians", "of processors")
        report(f"  {'':36}{''.join(f'{title:>14}' for title in titles)}")
        measured = timed(loops, rounds, steps)
        base = measured["by hand"].summary()
        for variant, times in measured.items():
            quarter, median, spent = times.summary()
            ratios = (quarter / base[0], median / base[1], spent / base[2])
            shown = "".join(f"{ratio:14.3f}" for ratio in ratios)
            report(f"  {variant:36}{quarter:14.2f}{median:14.2f}{shown}")
    if processes != 2 or short:
        return
    report(f"\nEvery layout: ms per step of {BATCH} windows, quickest quarter and median")
    measured = timed(
        {name: stoker(layout, list) for name, layout in LAYOUTS.items()}, rounds, steps
    )
    for variant, times in measured.items():
        quarter, median, _ = times.summary()
        report(f"  {variant:36}{quarter:14.2f}{median:14.2f}")


@dataclass
class Times:
    """Milliseconds: wall time of every step, and CPU time per step in each round."""

    steps: list[float] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)

    def summary(self) -> tuple[float, float, float]:
        quarter, median, _ = statistics.quantiles(self.steps, n=4)
        return quarter, median, statistics.median(self.spent)


def timed(loops: dict[str, Loop], rounds: int, steps: int) -> dict[str, Times]:
    """Time each loop, in alternating rounds, and check that they reach the same loss."""
    measured = {name: Times() for name in loops}
    for round_number in range(rounds + 1):
        losses, first = set(), round_number % len(loops)
        for name in [*loops][first:] + [*loops][:first]:
            data = Data(steps)
            dist.barrier()
            loops[name](data)
            losses.add(round(float(data.loss), 4))
            spent = data.processor_time()
            if round_number:  # the first one warms up
                measured[name].steps += data.step_times()
                measured[name].spent.append(spent)
        differ = torch.tensor(len(losses) > 1).int()
        dist.all_reduce(differ, dist.ReduceOp.MAX)
        if differ:
            report("  THE LOSSES DIFFER: these loops do not train the same")
    return measured


def report(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


# Processes


def connected(rank: int, count: int, store: str, work: Callable[..., None], args: Any) -> None:
    """Do a piece of the work as one of several processes."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    sys.stderr = Terminal()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    work(*args)
    dist.barrier()
    dist.destroy_process_group()


def together(count: int, work: Callable[..., None], *args: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        multiprocessing.start_processes(connected, (count, store, work, args), nprocs=count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--only", help="names of comparisons, separated by semicolons")
    parser.add_argument("--short", action="store_true", help="without default hooks and the table")
    options = parser.parse_args()
    only = [*COMPARISONS] if options.only is None else options.only.split(";")
    if unknown := {*only} - {*COMPARISONS}:
        parser.error(f"unknown {sorted(unknown)}: choose from {'; '.join(COMPARISONS)}")
    for processes in sorted({COMPARISONS[name][0] for name in only}):
        together(
            processes, step_times, processes, only, options.short, options.rounds, options.steps
        )


if __name__ == "__main__":
    main()
