"""Measure what logical ranks cost compared with DistributedDataParallel.

The same number of processes trains a transformer of at least 10 million parameters as plain DDP
(`Layout(replicate=P)`) and with as many logical ranks as processes, on the same data, in
alternating rounds. It prints the ratios of the fastest quarter of all steps, of the median step,
and of the CPU time, then the bytes that each process sends per step compared with an all-reduce.

    python benchmarks/logical.py [--processes 2] [--rounds 6] [--steps 12]
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from parallel import BATCH, Data, Loop, report, stoker, timed, together, transformer
from stoker import Engine, Layout
from stoker.parallel import LogicalModel
from stoker.parallel.logical.tree import complete_nodes, ranks_of

WIDTH, LAYERS = 384, 6
TRAFFIC = [(2, 8), (3, 8), (4, 8), (3, 6), (4, 6)]


def step_times(processes: int, rounds: int, steps: int) -> None:
    size = {"width": WIDTH, "layers": LAYERS}
    plain = Layout(replicate=processes)
    logical = Layout(replicate=-1, logical_ranks=processes)
    loops: dict[str, Loop] = {
        "DDP": stoker(plain, list, **size),
        "DDP again (noise)": stoker(plain, list, **size),
        f"logical_ranks={processes}": stoker(logical, list, **size),
    }
    parameters = sum(one.numel() for one in transformer(**size).parameters())
    report(f"{processes} processes, {parameters / 1e6:.1f} million parameters: ms per step")
    titles = ("quarter", "median", "ratio", "of medians", "of processors")
    report(f"  {'':36}{''.join(f'{title:>14}' for title in titles)}")
    measured = timed(loops, rounds, steps)
    base = measured["DDP"].summary()
    for variant, times in measured.items():
        found = times.summary()
        ratios = "".join(f"{one / other:14.3f}" for one, other in zip(found, base, strict=True))
        report(f"  {variant:36}{found[0]:14.2f}{found[1]:14.2f}{ratios}")


def traffic(processes: int, ranks: int) -> None:
    data = Data(3)
    engine: Engine = stoker(Layout(replicate=-1, logical_ranks=ranks), list)(data)
    model = engine.parallel_model
    assert isinstance(model, LogicalModel)
    gradients = sum(p.numel() * p.element_size() for p in engine.model.parameters())
    all_reduce = 2 * (processes - 1) / processes * gradients
    samples = ranks * (BATCH // ranks)  # per step
    sent = torch.tensor(model.bytes_sent / -(-len(data.windows) // samples))
    dist.all_reduce(sent, dist.ReduceOp.MAX)
    nodes = [
        len(complete_nodes(ranks_of(one, processes, ranks), ranks)) for one in range(processes)
    ]
    ratio = float(sent) / all_reduce
    report(
        f"  {processes} processes, {ranks} logical ranks, {nodes} nodes: {ratio:.3f} × all-reduce"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    together(options.processes, step_times, options.processes, options.rounds, options.steps)
    print("\nTraffic: bytes that the busiest process sends per step")
    for processes, ranks in TRAFFIC:
        together(processes, traffic, processes, ranks)
