"""The printed profile: tables of phases and hooks, and one piece of advice."""

import argparse
import inspect
import sys
from collections.abc import Iterator

from torch.optim import Optimizer

from stoker.build import Job
from stoker.cli.output import emit
from stoker.engine import Engine
from stoker.events.writers.console import format_table
from stoker.hooks.cost_report import Costs, guard_table, hook_table, phase_table, write_json
from stoker.storage import local_path

_NOTABLE = 0.05  # of a step


def print_summary(costs: Costs, job: Job, options: argparse.Namespace) -> None:
    """Print the profile and write the requested files."""
    several = f", rank 0 of {costs.processes}" if costs.processes > 1 else ""
    advised, measured = advice(costs, job.trainer.engine), costs.as_json()
    trace = f"trace: {options.trace} (open it in chrome://tracing or ui.perfetto.dev)"
    if options.output is not None:
        write_json(local_path(options.output, "--output"), measured)
    lines = [
        f"{len(costs.steps)} steps after {costs.warmup} warm-up steps{several}\n",
        table_text(phase_table(costs), text_columns=1),
        f"\nhooks, metrics and writers, per call (counted in {costs.counted} further steps)\n",
        table_text(hook_table(costs), text_columns=2),
        "\noutside the steps: what the guarantees of the run cost\n",
        table_text(guard_table(), text_columns=1),
        *([f"\n{trace}"] if options.trace is not None else []),
        f"\n{advised}",
    ]
    emit("profile", lines, **measured, advice=advised, trace=options.trace, output=options.output)


def table_text(table: list[list[str]], *, text_columns: int) -> str:
    """Return a table whose first ``text_columns`` columns are text, in colour on a terminal."""
    if not sys.stdout.isatty():
        return format_table(table, left=range(text_columns))
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column, head in enumerate(table[0]):
        drawn.add_column(head, justify="left" if column < text_columns else "right")
    for row in table[1:]:
        drawn.add_row(*row, style="dim" if row[0].startswith(" ") else None)
    console = Console()
    console.width = max(console.width, 120)  # a long line is better than a truncated number
    with console.capture() as captured:
        console.print(drawn, end="")
    return captured.get().rstrip("\n")


def advice(costs: Costs, engine: Engine) -> str:
    """Return one sentence about the largest avoidable cost."""
    found = max(_avoidable(costs, engine), default=None)
    if found is not None:
        return found[1]
    largest = max(costs.shares, key=lambda name: costs.shares[name])
    return f"nothing stands out: {largest} takes {costs.shares[largest]:.0%} of a step"


def _avoidable(costs: Costs, engine: Engine) -> Iterator[tuple[float, str]]:
    """Yield the largest share of a step that could be saved, and how."""
    shares = costs.shares
    if shares["data"] > 2 * _NOTABLE:
        yield (
            shares["data"],
            f"data takes {shares['data']:.0%} of a step: use worker processes (num_workers=…), or "
            "stoker.data.loader if the data fits in memory",
        )
    slow = [one for one in engine.optimizers.values() if _could_be_fused(one)]
    if slow and shares["update"] > 4 * _NOTABLE:
        kind = type(slow[0]).__name__
        yield (
            shares["update"] / 2,
            f"the update takes {shares['update']:.0%} of a step: try {kind}(…, fused=True)",
        )
    step = costs.counts_of("forward")
    if step is not None and step.syncs >= costs.counted:
        yield (
            _NOTABLE,
            f"the step itself synchronizes with the device {step.syncs / costs.counted:.3g} times: "
            "look for .item(), float(…) and boolean masks in model and loss",
        )
    for name in dict.fromkeys(row.hook for row in costs.rows if row.hook):
        rows = [row for row in costs.rows if row.hook == name and row.in_step and not row.part]
        share = sum(row.timer.total for row in rows) / sum(costs.steps)
        syncs = sum(row.counts.syncs for row in rows) / max(1, costs.counted)
        if syncs >= 0.5:
            yield (
                max(share, _NOTABLE),
                f"hook {name!r} synchronizes with the device {syncs:.3g} times per step "
                f"({share:.0%} of it): record tensors, and let writers read them",
            )
        elif share > 2 * _NOTABLE:
            yield share, f"hook {name!r} takes {share:.0%} of a step"


def _could_be_fused(optimizer: Optimizer) -> bool:
    accepts = "fused" in inspect.signature(type(optimizer)).parameters
    return accepts and not optimizer.defaults.get("fused")
