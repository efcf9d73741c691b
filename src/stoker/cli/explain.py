"""``stoker explain``: what a run would do, without doing it."""

import argparse
import shutil
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from torch import nn

from stoker.build import Job, train_feeder
from stoker.cli.exit_codes import OK
from stoker.cli.plot import sparkline
from stoker.cli.train import made
from stoker.config import ConfigError
from stoker.core.errors import did_you_mean
from stoker.core.every import Every
from stoker.hooks import Checkpoint, FreezeLayers, Hook, SaveWeights
from stoker.trainer import Trainer

_LONGEST_CURVE = 20_000


def explain(options: argparse.Namespace) -> int:
    """Print the loop, the results, the parameters, the calendar and the learning rate."""
    job = made(options)
    try:
        sections = {
            "The loop": job.trainer.explain().splitlines(),
            "Results": list(results(job.trainer)),
            "Parameters": list(parameter_table(job.trainer)),
            "Calendar": list(calendar(job)),
            "Learning rate": list(lr_curve(job)),
        }
    except ValueError as error:
        raise ConfigError(str(error)) from error
    for title, lines in sections.items():
        print(f"{title}\n{'─' * len(title)}")
        print("\n".join(lines) + "\n")
    return OK


def results(trainer: Trainer) -> Iterator[str]:
    """Who makes which result and who acts on it, and what cannot work."""
    hooks = list(trainer.hooks)
    makers: dict[str, list[Hook]] = defaultdict(list)
    for hook in hooks:
        for name in hook.produces:
            makers[name].append(hook)
    for name, by in makers.items():
        readers = [hook.name for hook in hooks if name in hook.consumes]
        then = f", read by {', '.join(readers)}" if readers else ""
        yield f"{name:<20} by {', '.join(hook.name for hook in by)}{then}"
    for hook in hooks:
        for name in hook.consumes:
            yield from _conflicts(hook, name, makers)


def _conflicts(reader: Hook, name: str, makers: dict[str, list[Hook]]) -> Iterator[str]:
    first, _, last = name.rpartition("/")
    known = f"val/{last}" if first.startswith("val/") else name  # of one of several loaders
    by = makers.get(name) or makers.get(known) or []
    if not by:
        near = did_you_mean(name, makers)
        yield f"conflict: {reader.name} reads '{name}', which no hook declares{near}"
    for maker in by:
        if maker.priority > reader.priority:
            yield (
                f"conflict: {reader.name} (priority {int(reader.priority)}) reads '{name}' before "
                f"{maker.name} (priority {int(maker.priority)}) makes it"
            )


def parameter_table(trainer: Trainer) -> Iterator[str]:
    """The parameters of each part of the model, and how many of them train."""
    for hook in trainer.hooks:
        if isinstance(hook, FreezeLayers):
            hook.before_train(trainer.run)
    model = trainer.engine.model
    parts = [*model.named_children()] or [("", model)]
    rows = [(name or "(model)", type(part).__name__, *_counted(part)) for name, part in parts]
    rows.append(("in all", type(model).__name__, *_counted(model)))
    yield f"{'part':<20} {'type':<20} {'parameters':>14} {'trained':>14}"
    for name, kind, total, trained in rows:
        frozen = "" if trained == total else "  frozen" if not trained else "  partly frozen"
        yield f"{name:<20} {kind:<20} {total:>14,} {trained:>14,}{frozen}"


def _counted(part: nn.Module) -> tuple[int, int]:
    sizes = [(p.numel(), p.requires_grad) for p in part.parameters()]
    return sum(n for n, _ in sizes), sum(n for n, trains in sizes if trains)


def calendar(job: Job) -> Iterator[str]:
    """Steps, validations and what the run will leave on disk."""
    run = job.run
    feeder = train_feeder(run, job.train_loader, job.trainer.engine.data_shard)
    total = job.total_steps
    if run.lr_step == "epoch" and run.epochs is not None and feeder.steps is not None:
        total = min(run.epochs * feeder.steps, run.max_steps or run.epochs * feeder.steps)
    yield f"steps per epoch      {_or_unknown(feeder.steps)}"
    yield f"steps in all         {_or_unknown(total)}"
    if run.global_batch is not None:
        yield (
            f"samples per step     {run.global_batch} ({run.micro_batch} × accumulate "
            f"{run.accumulate})"
        )
    yield f"validations          {_validations(job, feeder.steps, total)}"
    yield f"saves                {_often(job.run.checkpoint.every, feeder.steps, total)}"
    size = _disk_needed(job)
    folder = job.trainer.run.dir
    if folder is None:
        yield "disk                 nothing is written (run.dir is null)"
        return
    free = shutil.disk_usage(_existing(folder)).free
    yield f"disk                 some {size / 2**20:,.1f} MiB, free {free / 2**30:,.1f} GiB"
    if size > free:
        yield "conflict: the disk has less room than the run will need"


def _disk_needed(job: Job) -> int:
    """Weights, and checkpoints with an optimizer that keeps two numbers for each it trains."""
    model = job.trainer.engine.model
    weights = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    kinds = [type(hook) for hook in job.trainer.hooks]
    kept = (job.run.checkpoint.keep or 1) + 1 + (job.run.checkpoint.best is not None)
    one = weights + 2 * trained
    return int(weights * (SaveWeights in kinds) + one * kept * (Checkpoint in kinds))


def _validations(job: Job, per_epoch: int | None, total: int | None) -> str:
    if job.val_loader is None or job.run.validate_every is None:
        return "none"
    return _often(job.run.validate_every, per_epoch, total)


def _often(every: str | int | None, per_epoch: int | None, total: int | None) -> str:
    if every is None:
        return "at the beginning and the end"
    if every == "auto":
        return "as often as run.checkpoint.max_overhead allows"
    period = Every.of(every)
    if period.unit == "min":
        return f"every {period}, and at the end"
    if total is None or (period.unit == "ep" and per_epoch is None):
        return f"every {period}, how many is not known"
    steps = int(period.count) * (per_epoch or 1) if period.unit == "ep" else int(period.count)
    return str(-(-total // steps))


def lr_curve(job: Job) -> Iterator[str]:
    """The rate over the run, in a line."""
    engine, horizon = job.trainer.engine, job.total_steps
    for name, optimizer in engine.optimizers.items():
        scheduler = engine.lr_schedulers.get(name)
        first = optimizer.param_groups[0]["lr"]
        label = f"{name}: " if name else ""
        if scheduler is None or horizon is None:
            yield f"{label}{float(first):g} throughout"
            continue
        rates = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the optimizer has not stepped is the point
            for _ in range(min(horizon, _LONGEST_CURVE)):
                rates.append(float(optimizer.param_groups[0]["lr"]))
                scheduler.step()
        unit = "epochs" if job.run.lr_step == "epoch" else "steps"
        yield f"{label}{sparkline(rates)}"
        yield (
            f"{label}{rates[0]:.3g} at first, {max(rates):.3g} at most, {rates[-1]:.3g} at last "
            f"({len(rates)} {unit})"
        )


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _or_unknown(number: int | None) -> str:
    return "not known (the loader has no length)" if number is None else f"{number:,}"
