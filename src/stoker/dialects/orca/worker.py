"""Run the work of an estimator, locally or in every process of a job."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from inspect import isclass, signature
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from stoker import Engine, Hook, Trainer, hooks, load_weights
from stoker.core import dist
from stoker.dialects.adapter import with_names
from stoker.dialects.orca.bridge import DropHook, OwnerStep, RunnerHook, adapted, mean_seconds
from stoker.dialects.orca.callbacks import Callback, make_only_mainCallback
from stoker.dialects.orca.loaders import loader_of, shuffled
from stoker.dialects.orca.metrics import metrics_of_run
from stoker.dialects.orca.model_checkpoint import ModelCheckpoint
from stoker.dialects.orca.stats import OwnStats
from stoker.dialects.orca.torch_runner import TorchRunner
from stoker.rundir import files


@dataclass
class Parts:
    """The components of a training, as objects or functions that build them."""

    model: Any
    optimizer: Any
    loss: Any
    scheduler: Any
    scheduler_step_freq: Literal["epoch", "batch"]
    metrics: Any
    config: Any

    def engine(self) -> Engine:
        """Build the components."""
        if self.model is None:
            raise ValueError(
                "the estimator has no model: give Estimator.from_torch(model=…), or load() a file "
                "that save(entire=True) wrote"
            )
        model = self.model if isinstance(self.model, nn.Module) else self.model(self.config)
        if not isinstance(model, nn.Module):
            kind = type(model).__name__
            raise TypeError(f"the model creator returned a {kind}, expected a torch.nn.Module")
        optimizer = self.optimizer
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            optimizer = optimizer(model, self.config)
        scheduler = None
        if self.scheduler is not None and optimizer is not None:
            scheduler = self.scheduler(optimizer, self.config)
        by: Literal["epoch", "step"] = "epoch" if self.scheduler_step_freq == "epoch" else "step"
        return Engine(model, optimizer, self._criterion(), lr_scheduler=scheduler, lr_step=by)

    def _criterion(self) -> Any:
        loss = self.loss
        if isclass(loss):
            return loss()
        if loss is None or isinstance(loss, nn.Module) or len(signature(loss).parameters) != 1:
            return loss
        return loss(self.config)


@dataclass
class Job:
    """A fit, evaluation or prediction."""

    parts: Parts
    task: Literal["fit", "evaluate", "predict"]
    data: Any
    batch_size: int
    callbacks: Sequence[Callback]
    folder: str
    keeps: bool  # whether to keep the folder after the estimator is shut down
    at: str | None = None  # the checkpoint to resume from, or None for the newest of the folder
    weights: str | None = None  # initial weights
    validation: Any = None
    epochs: int | None = None
    max_steps: int | None = None
    limit: int | None = None
    profile: bool = False
    bar: bool = False
    per_worker: bool = False  # return the stats of each worker,
    synced: bool = True  # with losses and metrics over all of them
    serialized: bool = False  # workers call data creators one after another
    shuffles: bool = False  # the training data of a creator, whose loader does not
    log_level: int = logging.INFO


@dataclass
class Done:
    """The result of a job: counters, and results of an evaluation or a prediction."""

    rows: list[Any] = field(default_factory=list)
    epoch: int = 0
    step: int = 0
    stop_reason: str | None = None
    result: Any = None


def work(job: Job, engine: Engine | None = None) -> Done:
    """Run a job; every process calls this."""
    made_here = engine is None
    logging.getLogger("stoker").setLevel(job.log_level)
    engine = engine or job.parts.engine()
    if job.weights is not None and job.at is None:
        load_weights(engine.model, job.weights)
    runner = TorchRunner(engine, job.parts.config)
    owner, callbacks = make_only_mainCallback(job.callbacks)
    step = OwnerStep(owner, runner)
    metrics = metrics_of_run(job.parts.metrics, engine.given_criterion)
    measures = metrics if job.task != "predict" else {}
    watch = RunnerHook(runner, step, measures, profile=job.profile)
    own = OwnStats(runner, measures, synced=job.synced) if job.per_worker else None
    found = [hooks.Loss(), *([hooks.Metrics(**measures)] if measures else []), watch]
    found += [own] if own is not None else []
    trainer = Trainer(engine, [*found, *_hooks(job, callbacks, runner)], step=step)
    if made_here and job.at is not None and job.task != "fit":
        trainer.load(job.at)
    done = _run(job, trainer, runner, watch, own)
    done.epoch, done.step = trainer.run.epoch, trainer.run.step
    if job.task == "predict" and job.profile:
        runner.logger.info(f"seconds of the prediction: {mean_seconds(step.timers)}")
    return done


def _hooks(job: Job, callbacks: Sequence[Callback], runner: TorchRunner) -> list[Hook]:
    found: list[Hook] = [DropHook(runner)]
    for callback, name in with_names(callbacks):
        found.append(adapted(callback, runner, name))
        for hook in callback.hooks():
            hook.name = f"{name}.{hook.name}"
            found.append(hook)
    if job.bar and not any(isinstance(hook, hooks.Progress) for hook in found):
        found.append(hooks.Progress())
    if job.task == "fit":
        found += _saving(job, callbacks)
    return found


def _saving(job: Job, callbacks: Sequence[Callback]) -> list[Hook]:
    """Return the hook that saves the run, and the hook that names checkpoints."""
    folder = Path(job.folder) / files.CHECKPOINTS
    found = [callback for callback in callbacks if isinstance(callback, ModelCheckpoint)]
    if len(found) > 1:
        raise ValueError(f"{len(found)} ModelCheckpoints were given, expected at most one")
    if found:
        every = found[0].every
        return [hooks.Checkpoint(every, keep=None, folder=folder), found[0].names(folder)]
    return [hooks.Checkpoint("1ep" if job.keeps else None, folder=folder)]


def _run(
    job: Job, trainer: Trainer, runner: TorchRunner, watch: RunnerHook, own: OwnStats | None
) -> Done:
    loader = _loader(job, job.data, trainer.engine.model, job.task)
    if job.task == "predict":
        return Done(result=trainer.predict(loader))
    if job.task == "evaluate":
        runner.val_loader = loader
        results = watch.evaluation(trainer.evaluate(loader, limit_batches=job.limit))
        if own is None:
            return Done(result=results)
        return Done(result=dist.all_gather_object(own.evaluation(results)))
    runner.train_loader = loader
    if job.validation is not None:
        runner.val_loader = _loader(job, job.validation, trainer.engine.model, "validate")
    history = trainer.fit(
        loader,
        runner.val_loader,
        epochs=job.epochs if job.max_steps is None else None,
        max_steps=job.max_steps,
        resume=job.at or "auto",
    )
    rows: list[Any] = watch.rows
    if own is not None:
        rows = [list(row) for row in zip(*dist.all_gather_object(own.rows), strict=True)]
    return Done(rows, stop_reason=history.stop_reason)


def _loader(job: Job, data: Any, model: nn.Module, task: str) -> Any:
    size = max(1, job.batch_size // dist.world_size())
    turns = dist.world_size() if job.serialized else 1
    for turn in range(turns):
        if turns == 1 or turn == dist.rank():
            loader = loader_of(data, job.parts.config, size, model, task=task)
            if job.shuffles and task == "fit" and callable(data):
                loader = shuffled(loader)
        dist.barrier()
    return loader
