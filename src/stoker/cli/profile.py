"""``stoker profile``: where the time of a step goes, and the largest cost that can be avoided."""

import argparse
import inspect
import sys
from collections.abc import Iterator
from tempfile import TemporaryDirectory

from torch.optim import Optimizer

from stoker.build import Job, assembled
from stoker.cli.exit_codes import FAILED, INTERRUPTED, OK
from stoker.cli.launching import in_processes, wants_processes
from stoker.config import Config, ConfigError, load
from stoker.core import dist
from stoker.engine import Engine
from stoker.hooks import CostReport
from stoker.hooks.cost_report import Costs, format_table, hook_table, phase_table, write_json
from stoker.storage import local_path

_WORTH_SAYING = 0.05  # of a step
_VAL_BATCHES = 2


def profile(options: argparse.Namespace) -> int:
    """Train some steps in a folder of their own and print what they cost."""
    for name, least in (("steps", 1), ("warmup", 0)):
        if (count := getattr(options, name)) < least:
            raise ConfigError(f"--{name} is a whole number from {least}, got {count}")
    if options.folder is None:
        with TemporaryDirectory(prefix="stoker-profile-", ignore_cleanup_errors=True) as folder:
            options.folder = folder
            return profile(options)
    if wants_processes(options):
        return in_processes(profile, options)
    config = _short(options)
    job = assembled(config)
    report = next(hook for hook in job.trainer.hooks if isinstance(hook, CostReport))
    history = job.fit()
    if "Ctrl-C" in (history.stop_reason or ""):
        print("stoker: stopped by Ctrl-C before the profile was whole", file=sys.stderr)
        return INTERRUPTED
    dist.barrier()  # the folder is still needed by the others
    if dist.is_main() and report.costs is not None:
        _tell(report.costs, job, options)
    if report.costs is None:
        print(f"stoker: the run ended too early: {history.stop_reason}", file=sys.stderr)
    return FAILED if report.costs is None else OK


def _short(options: argparse.Namespace) -> Config:
    """The config with its own hooks and a `CostReport`, for a short run that leaves no trace."""
    given = load(options.config, options.overrides, allow=options.allow).check()
    if any(_is_report(hook) for hook in given.get("hooks") or []):
        raise ConfigError("the config has a CostReport already: 'stoker train' runs it")
    run = given["run"]
    steps = options.warmup + 2 * options.steps
    hook = f"{{type: CostReport, steps: {options.steps}, warmup: {options.warmup}"
    if options.trace is not None:
        trace = local_path(options.trace, "--trace").absolute()
        hook += f", trace: {str(trace)!r}"
    changes = [
        f"+hooks={hook}}}",
        f"run.max_steps={steps}",
        # a scheduler that moves once per epoch has to know how many there are
        f"run.epochs={steps if run['lr_step'] == 'epoch' else 'null'}",
        f"run.limit_val_batches={_VAL_BATCHES}",
        "run.resume=auto",
    ]
    if run["dir"] is not None:
        changes.append(f"run.dir={options.folder}")
    return load(options.config, [*options.overrides, *changes], allow=options.allow)


def _is_report(hook: object) -> bool:
    return str(getattr(hook, "target", "")).endswith("CostReport")


def _tell(costs: Costs, job: Job, options: argparse.Namespace) -> None:
    several = f", rank 0 of {costs.processes}" if costs.processes > 1 else ""
    print(f"{len(costs.steps)} steps after {costs.warmup} that warm up{several}\n")
    _show(phase_table(costs), text_columns=1)
    print(f"\nhooks, metrics and writers, per call ({costs.counted} further steps are counted)\n")
    _show(hook_table(costs), text_columns=2)
    if options.json is not None:
        write_json(local_path(options.json, "--json"), costs.as_json())
    if options.trace is not None:
        print(f"\ntrace: {options.trace} (open it in chrome://tracing or ui.perfetto.dev)")
    print(f"\n{advice(costs, job.trainer.engine)}")


def _show(table: list[list[str]], *, text_columns: int) -> None:
    if not sys.stdout.isatty():
        print(format_table(table, text_columns=text_columns))
        return
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column, head in enumerate(table[0]):
        drawn.add_column(head, justify="left" if column < text_columns else "right")
    for row in table[1:]:
        drawn.add_row(*row, style="dim" if row[0].startswith(" ") else None)
    console = Console()
    console.width = max(console.width, 120)  # a line too long is better than a number cut off
    console.print(drawn)


def advice(costs: Costs, engine: Engine) -> str:
    """One sentence on the largest cost that can be avoided."""
    found = max(_avoidable(costs, engine), default=None)
    if found is not None:
        return found[1]
    largest = max(costs.shares, key=lambda name: costs.shares[name])
    return f"nothing stands out: {largest} takes {costs.shares[largest]:.0%} of a step"


def _avoidable(costs: Costs, engine: Engine) -> Iterator[tuple[float, str]]:
    """What could be saved of a step at most, as a share of it, and how."""
    shares = costs.shares
    if shares["data"] > 2 * _WORTH_SAYING:
        yield (
            shares["data"],
            f"data takes {shares['data']:.0%} of a step: give the loader workers "
            "(num_workers=…), or make it by stoker.data.loader if the data is in memory",
        )
    slow = [one for one in engine.optimizers.values() if _could_be_fused(one)]
    if slow and shares["update"] > 4 * _WORTH_SAYING:
        kind = type(slow[0]).__name__
        yield (
            shares["update"] / 2,
            f"the update takes {shares['update']:.0%} of a step: try {kind}(…, fused=True)",
        )
    step = costs.counts_of("forward")
    if step is not None and step.syncs >= costs.counted:
        yield (
            _WORTH_SAYING,
            f"the step itself reads back from the device {step.syncs / costs.counted:.3g} times: "
            "look for .item(), float(…) and masks in model and loss",
        )
    for name in dict.fromkeys(row.hook for row in costs.rows if row.hook):
        rows = [row for row in costs.rows if row.hook == name and row.in_step and not row.part]
        share = sum(row.timer.total for row in rows) / sum(costs.steps)
        reads = sum(row.counts.syncs for row in rows) / max(1, costs.counted)
        if reads >= 0.5:
            yield (
                max(share, _WORTH_SAYING),
                f"hook {name!r} reads back from the device in each step ({reads:.3g} times, "
                f"{share:.0%} of it): keep tensors, and read them when a writer asks",
            )
        elif share > 2 * _WORTH_SAYING:
            yield share, f"hook {name!r} takes {share:.0%} of a step"


def _could_be_fused(optimizer: Optimizer) -> bool:
    takes = "fused" in inspect.signature(type(optimizer)).parameters
    return takes and not optimizer.defaults.get("fused")
