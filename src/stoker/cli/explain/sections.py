"""The sections of ``stoker explain``, from a job that has been built but not trained."""

import shutil
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from stoker.build import Job
from stoker.cli.plot import sparkline
from stoker.core.errors import did_you_mean
from stoker.core.every import Every
from stoker.core.tree import tensors
from stoker.data import Stream, length_of
from stoker.data.streams.state import count_records, summarize
from stoker.events.writers.console import format_table
from stoker.hooks import Checkpoint, FreezeLayers, Hook, SaveWeights
from stoker.parallel.logical.tree import ranks_of
from stoker.trainer import Trainer

_LONGEST_CURVE = 20_000
_MOST_PROCESSES = 8


def sections(job: Job) -> dict[str, Iterable[str]]:
    """Return the lines of each section by its title."""
    return {
        "The loop": job.trainer.explain().splitlines(),
        **_logical_ranks(job.trainer),
        "Metrics": _metrics(job.trainer),
        "Parameters": _parameters(job.trainer),
        "Data": _data(job),
        "Calendar": _calendar(job),
        "Learning rate": _lr_curve(job),
    }


def _logical_ranks(trainer: Trainer) -> dict[str, list[str]]:
    """Return the section on logical ranks; none if the layout has none."""
    total = trainer.engine.layout.logical_ranks
    if total is None:
        return {}
    lines = [f"{'processes':<12} logical ranks of each"]
    for processes in range(1, min(total, _MOST_PROCESSES) + 1):
        held = [ranks_of(process, processes, total) for process in range(processes)]
        lines.append(f"{processes:<12} {', '.join(_shown(ranks) for ranks in held)}")
    return {f"Logical ranks: {total}, threads: {trainer.engine.layout.threads}": lines}


def _shown(ranks: range) -> str:
    return f"{ranks[0]}" if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"


def _metrics(trainer: Trainer) -> Iterator[str]:
    """Yield which hooks produce and consume each metric, and the conflicts between them."""
    hooks = list(trainer.hooks)
    producers: dict[str, list[Hook]] = defaultdict(list)
    for hook in hooks:
        for name in hook.produces:
            producers[name].append(hook)
    for name, by in producers.items():
        consumers = [hook.name for hook in hooks if name in hook.consumes]
        used = f", used by {', '.join(consumers)}" if consumers else ""
        yield f"{name:<20} by {', '.join(hook.name for hook in by)}{used}"
    for hook in hooks:
        for name in hook.consumes:
            yield from _conflicts(hook, name, producers)


def _conflicts(consumer: Hook, name: str, producers: dict[str, list[Hook]]) -> Iterator[str]:
    first, _, last = name.rpartition("/")
    known = f"val/{last}" if first.startswith("val/") else name  # of one of several loaders
    by = producers.get(name) or producers.get(known) or []
    if not by:
        near = did_you_mean(name, producers)
        yield f"conflict: {consumer.name} uses '{name}', which no hook produces{near}"
    for producer in by:
        if producer.priority > consumer.priority:
            yield (
                f"conflict: {consumer.name} (priority {int(consumer.priority)}) uses '{name}' "
                f"before {producer.name} (priority {int(producer.priority)}) produces it"
            )


def _parameters(trainer: Trainer) -> Iterator[str]:
    """Yield the number of parameters of each submodule, and how many of them are trained."""
    for hook in trainer.hooks:
        if isinstance(hook, FreezeLayers):
            hook.before_train(trainer.run)
    model = trainer.engine.model
    parts = [*model.named_children()] or [("", model)]
    rows = [(name or "(model)", type(part).__name__, *_counted(part)) for name, part in parts]
    rows.append(("total", type(model).__name__, *_counted(model)))
    yield f"{'part':<20} {'type':<20} {'parameters':>14} {'trained':>14}"
    for name, kind, total, trained in rows:
        frozen = "" if trained == total else "  frozen" if not trained else "  partly frozen"
        yield f"{name:<20} {kind:<20} {total:>14,} {trained:>14,}{frozen}"


def _counted(part: nn.Module) -> tuple[int, int]:
    sizes = [(p.numel(), p.requires_grad) for p in part.parameters()]
    return sum(n for n, _ in sizes), sum(n for n, trains in sizes if trains)


def _data(job: Job) -> Iterator[str]:
    """Yield what each loader reads: its kind, samples and batches; of a stream also its files."""
    loaders = {"train": job.train_loader}
    several = job.val_loader if isinstance(job.val_loader, Mapping) else {"": job.val_loader}
    loaders |= {f"val/{name}".rstrip("/"): one for name, one in several.items()}
    rows = [["data", "kind", "samples", "batches", "from"]]
    for name, loader in loaders.items():
        if loader is not None:
            kind, samples, place = _described(loader)
            counts = ["unknown" if n is None else f"{n:,}" for n in (samples, length_of(loader))]
            rows.append([name, kind, *counts, place])
    yield from format_table(rows, left={0, 1, 4}).splitlines()


def _described(loader: Any) -> tuple[str, int | None, str]:
    """Return the kind of a loader, its number of samples, and where they come from."""
    if isinstance(loader, Stream):
        return "Stream", count_records(loader.plan), summarize(loader.plan)
    dataset = getattr(loader, "dataset", None)
    place = "" if dataset is None else type(dataset).__name__
    return type(loader).__name__, length_of(dataset), place


def _calendar(job: Job) -> Iterator[str]:
    """Yield the number of steps, validations and saves, and the disk space they need."""
    run, per_epoch, total = job.run, job.steps_per_epoch, job.total_steps
    yield f"steps per epoch      {_or_unknown(per_epoch)}"
    yield f"steps in total       {_or_unknown(total)}"
    if run.global_batch is not None:
        yield (
            f"samples per step     {run.global_batch} ({run.micro_batch} × accumulate "
            f"{run.accumulate})"
        )
    yield f"validations          {_validations(job, per_epoch, total)}"
    yield f"saves                {_count(job.run.checkpoint.every, per_epoch, total)}"
    size = _disk_needed(job)
    folder = job.trainer.run.dir
    if folder is None:
        yield "disk                 nothing is written (run.dir is null)"
        return
    free = shutil.disk_usage(_existing(folder)).free
    yield f"disk                 about {size / 2**20:,.1f} MiB, free {free / 2**30:,.1f} GiB"
    if size > free:
        yield "conflict: there is not enough free disk space for the run"


def _disk_needed(job: Job) -> int:
    """Estimate the bytes of weights and checkpoints, with two optimizer values per parameter."""
    model = job.trainer.engine.model
    weights = sum(t.numel() * t.element_size() for t in tensors(model.state_dict()))
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    kinds = [type(hook) for hook in job.trainer.hooks]
    kept = (job.run.checkpoint.keep or 1) + 1 + (job.run.checkpoint.best is not None)
    one = weights + 2 * trained
    return int(weights * (SaveWeights in kinds) + one * kept * (Checkpoint in kinds))


def _validations(job: Job, per_epoch: int | None, total: int | None) -> str:
    if job.val_loader is None or job.run.validate_every is None:
        return "none"
    return _count(job.run.validate_every, per_epoch, total)


def _count(every: str | int | None, per_epoch: int | None, total: int | None) -> str:
    if every is None:
        return "at the first and last step"
    if every == "auto":
        return "as often as run.checkpoint.max_overhead allows"
    if every == "epoch":
        return "after each epoch, less often if epochs are short"
    period = Every.of(every)
    if period.unit == "min":
        return f"every {period}, and at the end"
    if total is None or (period.unit == "ep" and per_epoch is None):
        return f"every {period}, unknown number"
    steps = int(period.count) * (per_epoch or 1) if period.unit == "ep" else int(period.count)
    return str(-(-total // steps))


def _lr_curve(job: Job) -> Iterator[str]:
    """Yield the learning rate over the run as a sparkline."""
    engine, horizon = job.trainer.engine, job.scheduler_steps
    for name, optimizer in engine.optimizers.items():
        scheduler = engine.lr_schedulers.get(name)
        first = optimizer.param_groups[0]["lr"]
        label = f"{name}: " if name else ""
        if scheduler is None or horizon is None:
            yield f"{label}{float(first):g} throughout"
            continue
        rates = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the optimizer does not step here
            for _ in range(min(horizon, _LONGEST_CURVE)):
                rates.append(float(optimizer.param_groups[0]["lr"]))
                scheduler.step()
        unit = "epochs" if job.run.lr_step == "epoch" else "steps"
        yield f"{label}{sparkline(rates)}"
        yield (
            f"{label}first {rates[0]:.3g}, highest {max(rates):.3g}, last {rates[-1]:.3g} "
            f"({len(rates)} {unit})"
        )


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _or_unknown(number: int | None) -> str:
    return "unknown (the loader has no length)" if number is None else f"{number:,}"
