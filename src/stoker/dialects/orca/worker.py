"""Run the work of an estimator, locally or in every process of a job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isclass, signature
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from stoker import Engine, Hook, Trainer, hooks, load_weights
from stoker.core import dist
from stoker.dialects.adapter import with_names
from stoker.dialects.orca.bridge import DropHook, OwnerStep, RunnerHook, adapted
from stoker.dialects.orca.callbacks import Callback, make_only_mainCallback
from stoker.dialects.orca.loaders import loader_of
from stoker.dialects.orca.metrics import named
from stoker.dialects.orca.model_checkpoint import ModelCheckpoint
from stoker.dialects.orca.torch_runner import TorchRunner, renamed
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
    config: Mapping[str, Any]

    def engine(self) -> Engine:
        """Build the components."""
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
    keeps: bool
    """Whether to keep the folder after the estimator is shut down."""
    at: str | None = None
    """The checkpoint to resume from, or None for the newest of the folder."""
    weights: str | None = None
    """Initial weights."""
    validation: Any = None
    epochs: int | None = None
    max_steps: int | None = None
    limit: int | None = None
    profile: bool = False
    bar: bool = False


@dataclass
class Done:
    """The result of a job: counters, and results of an evaluation or a prediction."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    epoch: int = 0
    step: int = 0
    stop_reason: str | None = None
    result: Any = None


def work(job: Job, engine: Engine | None = None) -> Done:
    """Run a job; every process calls this."""
    made_here = engine is None
    engine = engine or job.parts.engine()
    if job.weights is not None and job.at is None:
        load_weights(engine.model, job.weights)
    runner = TorchRunner(engine, job.parts.config)
    owner, callbacks = make_only_mainCallback(job.callbacks)
    step = OwnerStep(owner, runner)
    watch = RunnerHook(runner, step, profile=job.profile)
    trainer = Trainer(engine, _hooks(job, callbacks, runner, watch), step=step)
    if made_here and job.at is not None and job.task != "fit":
        trainer.load(job.at)
    done = _run(job, trainer, runner)
    done.rows, done.epoch, done.step = watch.rows, trainer.run.epoch, trainer.run.step
    return done


def _hooks(
    job: Job, callbacks: Sequence[Callback], runner: TorchRunner, watch: RunnerHook
) -> list[Hook]:
    found: list[Hook] = [hooks.Loss()]
    if job.parts.metrics:
        found.append(hooks.Metrics(**named(job.parts.metrics)))
    found += [watch, DropHook(runner)]
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


def _run(job: Job, trainer: Trainer, runner: TorchRunner) -> Done:
    size = max(1, job.batch_size // dist.world_size())
    config = job.parts.config
    loader = loader_of(job.data, config, size, shuffle=job.task == "fit")
    if job.task == "predict":
        return Done(result=trainer.predict(loader))
    if job.task == "evaluate":
        runner.val_loader = loader
        return Done(result=renamed(trainer.evaluate(loader, limit_batches=job.limit)))
    runner.train_loader = loader
    if job.validation is not None:
        runner.val_loader = loader_of(job.validation, config, size, shuffle=False)
    history = trainer.fit(
        loader,
        runner.val_loader,
        epochs=job.epochs if job.max_steps is None else None,
        max_steps=job.max_steps,
        resume=job.at or "auto",
    )
    return Done(stop_reason=history.stop_reason)
