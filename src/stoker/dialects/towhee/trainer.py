"""`Trainer`: train a model with a config and data."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

import stoker
from stoker import Hook, Run
from stoker.checkpoint import Checkpoints
from stoker.core import dist
from stoker.core.log import get_logger
from stoker.core.seed import seed_all
from stoker.core.tree import batch_size
from stoker.dialects.adapter import with_names
from stoker.dialects.towhee import components, folders
from stoker.dialects.towhee.callback import (
    Callback,
    CallbackList,
    ModelCheckpointCallback,
    TrainerControl,
)
from stoker.dialects.towhee.callback_hooks import LogsHook, RequestHook, adapted
from stoker.dialects.towhee.datasets import unwrapped
from stoker.dialects.towhee.metrics import as_number, get_metric_by_name
from stoker.dialects.towhee.modelcard import MODEL_CARD_NAME, ModelCard
from stoker.dialects.towhee.overrides import (
    METHODS,
    USER_EVALUATION,
    OverrideStep,
    check_overrides,
    only_in_training,
)
from stoker.dialects.towhee.results import PassResults
from stoker.dialects.towhee.training_config import TrainingConfig, off
from stoker.dialects.towhee.utils import trainer_log
from stoker.engine import unwrap
from stoker.nn import LayerFreezer
from stoker.rundir import files
from stoker.storage import local_path

_log = get_logger()
_CUSTOM = "custom_"
_SCRATCH = ".resumed"


class Trainer:
    """Train a model as configured by a `TrainingConfig`.

        trainer = Trainer(model, TrainingConfig(output_dir="out"), train_dataset=data)
        trainer.train()

    An interrupted training resumes when the same call is repeated. Every public method can be
    overridden. For each batch of training these are called, in this order:

        prepare_inputs                  move the batch to the device
        train_step                      one update:
            compute_loss                    the loss, in training mode (set_train_mode)
            update_metrics                  add to loss_metric …
                compute_metric              … and to metric; return the values so far
            optimizer, lr_scheduler

    and for an evaluation ``evaluate``, and for each of its batches ``evaluate_step`` with the same
    parts. Loaders are built from the datasets unless they are given.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        training_config: TrainingConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        train_dataloader: Any = None,
        eval_dataloader: Any = None,
        model_card: ModelCard | None = None,
    ) -> None:
        if model is None:
            raise RuntimeError("model is None: a Trainer needs a model")
        if training_config is None:
            training_config = TrainingConfig(output_dir="tmp_trainer")
            _log.warning("no training_config was given: results are written to 'tmp_trainer'")
        self.model, self.configs, self.model_card = model, training_config, model_card
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.train_dataloader, self.eval_dataloader = train_dataloader, eval_dataloader
        self.callbacks, self.trainercontrol = CallbackList(), TrainerControl()
        self.optimizer: Any = None
        self.loss: Any = None
        self.lr_scheduler: Any = None
        self.override_optimizer = self.override_loss = False
        self.epoch = 0
        self.lr_value = training_config.lr
        self.loss_value = self.metric_value = 0.0
        self.seen: Any = None  # the last outputs, if a metric needs them
        self._results = (PassResults("eval_"), PassResults(""))
        self._logs_hook = self._make_logs_hook()
        self._native: stoker.Trainer | None = None
        self._fitting = False
        self._loaded: Path | None = None  # the folder to resume from
        self._source: Path | None = None  # the checkpoint to publish
        self._start: tuple[int, Any] = (0, None)  # the epoch and the optimizer state of old files
        self._made: dict[str, Any] = {}  # the settings of the optimizer and the loss
        self._names: dict[str, str] = {}  # the names of those set by the user
        self._built_in: list[Callback] = []
        self._loaders: tuple[Any, Any] = (None, None)
        self._size, self._steps = 1, 0  # samples of the last batch; updates so far
        self._watch: Any = None

    def __init_subclass__(cls) -> None:
        check_overrides(cls)
        if "set_train_mode" in vars(cls):
            cls.set_train_mode = only_in_training(cls.set_train_mode)  # type: ignore[method-assign]

    # Training

    def train(self, resume_checkpoint_path: str | Path | None = None) -> None:
        """Train until ``epoch_num`` epochs are finished, and save the result as ``final_epoch``.

        ``resume_checkpoint_path`` is a folder to resume from, such as ``out/epoch_1``.
        """
        self.configs.check()
        output_dir = local_path(self.configs.output_dir, "output_dir")
        if resume_checkpoint_path is not None:
            path = self._loaded = Path(resume_checkpoint_path)
            if self.owns("load") or not folders.has_checkpoint(path):
                self._loaded = None
                self.load(resume_checkpoint_path)
                self._start = (self.epoch, self._start[1])
        folder, scratch = self._loaded, output_dir / _SCRATCH
        with folders.opened(folder, scratch) if folder is not None else nullcontext() as resume:
            if self._fit(output_dir, resume):
                self._save_final(output_dir)
                folders.forget(output_dir)

    def _fit(self, output_dir: Path, resume: Path | None) -> bool:
        """Train; return whether this training has come to its end."""
        configs = self.configs
        if resume is not None:
            fresh = output_dir / files.CHECKPOINTS not in resume.parents
        else:
            may = configs.overwrite_output_dir or self._native is not None
            fresh = not folders.was_interrupted(output_dir, configs.to_dict(), may)
        native = self._build(keep_counters=resume is None and fresh, fresh=fresh)
        if dist.is_main():
            trainer_log.warning(configs)
        before = native.run.step
        self._fitting = True
        try:
            native.fit(
                self._loaders[0],
                USER_EVALUATION if self.owns("evaluate") else self._loaders[1],
                epochs=configs.epoch_num,
                validate_every=components.validate_every(configs),
                resume=resume or "auto",
            )
        finally:
            self._fitting = False
        self.epoch, self._loaded, self._start = native.run.epoch, None, (0, None)
        return not native.run.requests.signal and native.run.step != before

    def train_step(self, model: nn.Module, inputs: Any) -> dict[str, Any]:
        """Run one update and return the logs: step_loss, epoch_loss, epoch_metric."""
        native, results = self.ready(), self.results(training=True)
        results.given = None
        if not self._fitting or unwrap(model) is not unwrap(self.model):
            return self._step_outside(model, inputs)
        run = native.run
        run.batches = [inputs]
        stoker.Step.train(native.step, run)
        if results.given is None:
            results.add(run, run.outputs[-1], run.sizes[0])
        return results.values()

    def _step_outside(self, model: nn.Module, inputs: Any) -> dict[str, Any]:
        """Run one update outside of a training, or of another model."""
        if self.optimizer is None:
            raise ValueError("train_step needs an optimizer: give the trainer training data first")
        self.optimizer.zero_grad()
        loss = self.compute_loss(model, inputs)
        self.ready().engine.backward(loss)
        logs = self.measured(model, inputs, loss, training=True)
        self.optimizer.step()
        self.lr_scheduler.step()
        return logs

    def compute_loss(self, model: nn.Module, inputs: Any) -> Any:
        """Return the loss of one batch of inputs and labels."""
        self.set_train_mode(model)
        return self.loss(model(inputs[0]), inputs[1])

    def compute_metric(self, model: nn.Module, inputs: Any) -> Any:
        """Add one batch and return the metric over the pass so far; None if there is none."""
        if self.metric is None:
            return None
        with _in_eval_mode(model):
            self.metric.update(model(inputs[0]), inputs[1])
        return as_number(self.metric.compute())

    def update_metrics(
        self, model: nn.Module, inputs: Any, step_loss: Any, training: bool = True
    ) -> tuple[Any, Any]:
        """Add the loss and the metric of one batch; return both over the pass so far."""
        self._size = batch_size(inputs)
        with self._in_pass(training), _in_eval_mode(model):
            self.loss_metric.update(torch.as_tensor(step_loss).detach())
            loss = as_number(self.loss_metric.compute())
            left_out = training and self.configs.eval_strategy == "eval_epoch"
            return loss, 0 if left_out else self.compute_metric(model, inputs)

    def measured(
        self, model: nn.Module, inputs: Any, loss: Any, *, training: bool
    ) -> dict[str, Any]:
        """Return the logs of one batch, from ``update_metrics``."""
        results, self._size = self.results(training), batch_size(inputs)
        with self._in_pass(training), _in_eval_mode(model):
            epoch_loss, metric = self.update_metrics(model, inputs, loss.detach(), training)
        named = {"step_loss": loss.item(), "epoch_loss": epoch_loss, "epoch_metric": metric}
        return {f"{results.prefix}{n}": value for n, value in named.items() if value is not None}

    def evaluate(self, model: nn.Module, logs: dict[str, Any] | None = None) -> dict[str, Any]:
        """Evaluate, and put eval_epoch_loss and eval_epoch_metric into the logs."""
        logs = {} if logs is None else logs
        native, loader = self.ready(), self._loaders[1]
        if loader is None:
            _log.warning("evaluate() has no evaluation data: nothing is evaluated")
            return logs
        engine, watch, kept, shared = native.engine, None, dict(self.logs), self.logs
        if unwrap(model) is not unwrap(self.model):
            engine = components.build_engine(self.configs, model, None, self.loss)
            watch = self._watching(model)
        if self._fitting or engine is not native.engine:
            native = stoker.Trainer(engine, self._observers, step=native.step)
        shared.update(logs)
        native.evaluate(loader)
        logs.update({n: v for n, v in shared.items() if n.startswith("eval_")})
        if watch is not None:
            watch.remove()
        if logs is not shared and not self._fitting:
            shared.clear()
            shared.update(kept)
        return logs

    @torch.no_grad()
    def evaluate_step(self, model: nn.Module, inputs: Any) -> dict[str, Any]:
        """Run one evaluation batch; return eval_step_loss, eval_epoch_loss, eval_epoch_metric."""
        native, results = self.ready(), self.results(training=False)
        inputs, step = self.prepare_inputs(inputs), native.step
        results.given = None
        with self._in_pass(training=False), _in_eval_mode(model):
            if unwrap(model) is not unwrap(self.model) or getattr(step, "measures", False):
                loss = self.compute_loss(model, inputs)
                return self.measured(model, inputs, loss, training=False)
            results.add(native.run, step.forward(native.engine, inputs), batch_size(inputs))
        return results.values()

    def predict(self, inputs: Any) -> Any:
        """Return the outputs for one batch of inputs, or for a loader of them."""
        return self.ready().predict(inputs)

    def save(self, path: str | Path, overwrite: bool = True) -> None:
        """Save the complete training state as a folder; ``overwrite`` replaces an existing one.

        Within a training, only weights, optimizer and epoch are saved.
        """
        target, native = Path(path), self.ready()
        if target.exists() and not overwrite:
            raise FileExistsError(f"'{target}' already exists, and overwrite is False")
        if self._source is not None:
            folders.publish(target, partial(folders.copy_checkpoint, self._source), self._put)
        elif self._fitting:
            folders.publish(target, self._put)
        else:
            folders.publish(target, lambda to: _saved(native, to), self._put)

    def _save_named(self, target: Path, source: Path) -> None:
        """Publish a checkpoint of the training in progress."""
        self._source = source
        try:
            self.save(target, overwrite=True)
        finally:
            self._source = None

    def _save_final(self, output_dir: Path) -> None:
        """Save the result of a training, as a link if its last save has the same weights."""
        final, last, weights = output_dir / folders.FINAL, self._folders.last, None
        if last is not None and not self.owns("save"):
            weights = self.ready().engine.weights()
        if last is None or weights is None or not folders.link(final, last, weights):
            self.save(final)

    def load(self, path: str | Path) -> None:
        """Load saved weights and the epoch; the next train() resumes from there.

        A folder that Towhee saved has neither the step nor the random state: training continues
        with the next epoch.
        """
        folder = Path(path)
        if not folders.has_checkpoint(folder):
            self._load_old(folder)
            return
        scratch = local_path(self.configs.output_dir, "output_dir") / _SCRATCH
        with folders.opened(folder, scratch) as checkpoint:
            shared = Checkpoints(checkpoint.parent).load(checkpoint).shared
        unwrap(self.model).load_state_dict(shared["model"])
        self._loaded, self.epoch = folder, shared["run"]["epoch"]
        self._note(self.epoch, shared["hooks"].get(self._logs_hook.name, {}).get("logs", {}))

    def _load_old(self, folder: Path) -> None:
        weights, state = folders.read_state(folder)
        unwrap(self.model).load_state_dict(weights)
        self.epoch = int(state["epoch"])
        self.loss_value, self.metric_value = state["loss_value"], state["metric_value"]
        self.lr_value = state["end_lr"]
        self._start = (self.epoch, state["optimizer_state_dict"])

    def _put(self, folder: Path) -> None:
        """Write the files of Towhee into a folder."""
        engine = self.ready().engine
        weights = engine.weights()
        if not dist.is_main():
            return
        results = {"loss_value": self.loss_value, "metric_value": self.metric_value}
        state = engine.state_dict()
        alone = engine.layout.processes == 1 and self.optimizer is not None
        folders.write_state(
            folder,
            {
                "epoch": self.epoch,
                "optimizer_state_dict": state["optimizers"][""] if alone else {},
                "lr_scheduler_state_dict": state["lr_schedulers"].get("", {}),
                **results,
                "end_lr": self.lr_value,
            },
            weights,
        )
        card = self.model_card or ModelCard()
        card.describe(unwrap(self.model), unwrapped(self.train_dataset) or self.train_dataloader)
        card.training_config = self.configs.to_dict() | self._names
        card.training_summary = {"epoch": self.epoch, "lr": self.lr_value, **results}
        card.save_model_card(folder / MODEL_CARD_NAME)

    def push_model_to_hub(self) -> None:
        """Log that there is no hub to push to; override it to push somewhere."""
        _log.warning("push_model_to_hub() does nothing, as in Towhee")

    def add_callback(self, callback: Callback, singleton: bool = True) -> None:
        """Add a callback; with ``singleton`` it replaces all others of its class."""
        if singleton:
            self.callbacks.pop_class(callback)
        self.callbacks.add_callback(callback, singleton=False)

    def set_optimizer(self, optimizer: Optimizer, optimizer_name: str | None = None) -> None:
        """Train with this optimizer; the name appears in the config and the model card."""
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"expected an optimizer of the model, got {optimizer!r}")
        self.optimizer, self.lr_scheduler, self.override_optimizer = optimizer, None, True
        self.configs.optimizer = optimizer_name or _CUSTOM
        self._names["optimizer"] = optimizer_name or type(optimizer).__name__

    def set_loss(self, loss: Any, loss_name: str | None = None) -> None:
        """Train with this loss function; the name appears in the config and the model card."""
        if not callable(loss):
            raise TypeError(f"expected a loss function, got {loss!r}")
        self.loss, self.override_loss = loss, True
        self.configs.loss = loss_name or _CUSTOM
        self._names["loss"] = loss_name or type(loss).__name__

    def prepare_inputs(self, inputs: Any) -> Any:
        """Return a batch on the device."""
        self._size = batch_size(inputs)
        return self.ready().engine.place(inputs)

    def set_train_mode(self, model: nn.Module) -> None:
        """Set a model to training mode, with batch norms as configured."""
        if not self.evaluating:
            model.train()
            if self.configs.freeze_bn:
                LayerFreezer(model).freeze_bn()

    def get_train_dataloader(self) -> Any:
        """Return the training loader, or None."""
        if self.train_dataloader is not None or self.train_dataset is None:
            return self.train_dataloader
        return components.build_loader(self.configs, unwrapped(self.train_dataset), training=True)

    def get_eval_dataloader(self) -> Any:
        """Return the evaluation loader, or None."""
        if self.eval_dataloader is not None or self.eval_dataset is None:
            return self.eval_dataloader
        return components.build_loader(self.configs, unwrapped(self.eval_dataset), training=False)

    def setup_before_train(self, num_training_steps: int | None, init_lr: float) -> None:
        """Build what training needs, before each train().

        Args:
            num_training_steps: The updates of the complete training; None if that is unknown.
            init_lr: The learning rate of the config.
        """
        self._create_optimizer(init_lr)
        self._create_loss()
        self._create_metric()
        self._create_scheduler(num_training_steps, self.optimizer)
        self._create_callbacks()

    def _create_optimizer(self, init_lr: float) -> None:
        spec = (self.configs.optimizer, init_lr)
        if self.override_optimizer or self._made.get("optimizer") == spec:
            return
        self.optimizer = components.build_optimizer(self.configs, self.model, init_lr)
        self._made["optimizer"], self.lr_scheduler = spec, None

    def _create_loss(self) -> None:
        spec = self.configs.loss
        if not self.override_loss and self._made.get("loss") != spec:
            self.loss, self._made["loss"] = components.build_loss(self.configs), spec

    def _create_metric(self) -> None:
        name = self.configs.metric
        wanted = isinstance(name, str) and not off(name)
        on_training = self.configs.eval_strategy != "eval_epoch"
        for training, results in enumerate(self._results):
            counts = wanted and (on_training or not training)
            results.metric = get_metric_by_name(str(name)) if counts else None

    def _create_scheduler(
        self, num_training_steps: int | None, optimizer: Optimizer | None = None
    ) -> Any:
        self.lr_scheduler = components.build_scheduler(
            self.configs,
            self.optimizer if optimizer is None else optimizer,
            num_training_steps,
            (self._steps, self.lr_scheduler),
        )
        return self.lr_scheduler

    def _create_callbacks(self) -> None:
        for one in self._built_in:
            self.callbacks.pop_callback(one)
        usual = components.build_callbacks(self.configs, self.trainercontrol, self._loaders[0])
        taken = {type(one).__name__ for one in self.callbacks}
        self._built_in = [one for one in usual if type(one).__name__ not in taken]
        for one in self._built_in:
            self.callbacks.add_callback(one)

    @property
    def metric(self) -> Any:
        """The metric of the current pass; if you set one, evaluations use a copy of it."""
        return self.results(training=not self.evaluating).metric

    @metric.setter
    def metric(self, metric: Any) -> None:
        self._results[0].metric, self._results[1].metric = deepcopy(metric), metric

    @property
    def loss_metric(self) -> Any:
        """The mean loss of the current pass, over samples unless you set another metric."""
        results = self.results(training=not self.evaluating)
        own = results.loss_metric
        return own if own is not None else results.as_metric(self._size)

    @loss_metric.setter
    def loss_metric(self, metric: Any) -> None:
        self._results[0].loss_metric, self._results[1].loss_metric = deepcopy(metric), metric

    @property
    def logs(self) -> dict[str, Any]:
        """The logs that callbacks get."""
        return self._logs_hook.logs

    @property
    def evaluating(self) -> bool:
        """Whether an evaluation is in progress."""
        return self._logs_hook.evaluating

    def results(self, training: bool) -> PassResults:
        """Return the results of training or of evaluation."""
        return self._results[training]

    def owns(self, method: str) -> bool:
        """Return whether a method is overridden."""
        return getattr(type(self), method) is not getattr(Trainer, method)

    @contextmanager
    def _in_pass(self, training: bool) -> Iterator[None]:
        before, self._logs_hook.evaluating = self.evaluating, not training
        try:
            yield
        finally:
            self._logs_hook.evaluating = before

    # Building

    def ready(self) -> stoker.Trainer:
        """Return the Stoker trainer, built on first use."""
        return self._native if self._native is not None else self._build(keep_counters=False)

    def _build(self, *, keep_counters: bool, fresh: bool = False) -> stoker.Trainer:
        """Build the Stoker trainer.

        Args:
            keep_counters: Continue the counters of the last trainer.
            fresh: Replace an interrupted training in the output folder.
        """
        previous = self._native.run if keep_counters and self._native is not None else None
        self._loaders = (self.get_train_dataloader(), self.get_eval_dataloader())
        self._set_up(previous, start=self._start[0] if keep_counters else 0)
        logs = self.logs if previous is not None else {}
        self._logs_hook = self._make_logs_hook()
        self.logs.update(logs)
        step = OverrideStep(self) if any(map(self.owns, METHODS)) else None
        if self._watch is not None:
            self._watch.remove()
        self._watch = self._watching(self.model)
        engine = components.build_engine(self.configs, self.model, self.optimizer, self.loss)
        if self.lr_scheduler is not None:
            engine.lr_schedulers[""] = self.lr_scheduler
        if engine.layout.processes > 1 and self.owns("train_step"):
            raise ValueError(
                "train_step is overridden, so gradients are not shared between processes: "
                "override compute_loss instead"
            )
        called = [adapted(one, name, self.logs) for one, name in with_names(self.callbacks)]
        requests = RequestHook(self.callbacks, self.trainercontrol, self._logs_hook)
        self._observers: list[Hook] = [self._logs_hook, *called, requests]
        self._folders = self._make_folders(fresh)
        stock = components.build_hooks(self.configs, self.callbacks, self._built_in)
        every = [*self._observers, self._folders, *stock]
        native = stoker.Trainer(engine, every, step=step, seed=self.configs.seed)
        self._set_counters(native.run, previous)
        self._native = native
        return native

    def _set_up(self, previous: Run | None, start: int) -> None:
        """Build what training needs, or without training data what an evaluation needs."""
        loader = self._loaders[0]
        if loader is None:
            for create in (self._create_loss, self._create_metric, self._create_callbacks):
                create()
            return
        length = max(1, len(loader)) if hasattr(loader, "__len__") else None
        self._steps = previous.step if previous is not None else start * (length or 0)
        total = None if length is None else length * self.configs.epoch_num
        self.setup_before_train(num_training_steps=total, init_lr=self.configs.lr)

    def _set_counters(self, run: Run, previous: Run | None) -> None:
        """Continue the counters of the last trainer, or begin where an old save ended."""
        for name in ("step", "epoch", "samples") if previous is not None else ():
            setattr(run, name, getattr(previous, name))
        if previous is None and self._steps:
            run.epoch, run.step = self._start[0], self._steps
            seed_all(self.configs.seed)
            if self._start[1]:
                self.optimizer.load_state_dict(self._start[1])

    def _make_logs_hook(self) -> LogsHook:
        evaluation, train = self._results
        return LogsHook(self.callbacks, self.trainercontrol, train, evaluation, self._note)

    def _make_folders(self, fresh: bool) -> folders.Folders:
        output_dir = local_path(self.configs.output_dir, "output_dir")
        saving = [one for one in self.callbacks if isinstance(one, ModelCheckpointCallback)]
        named = output_dir / saving[-1].filepath if saving else None
        settings = self.configs.to_dict()
        return folders.Folders(output_dir, named, settings, self._save_named, fresh=fresh)

    def _watching(self, model: nn.Module) -> Any:
        """Keep the outputs of a model for the metric if an overridden method computes the loss."""
        measures = self.owns("compute_metric") or self.owns("update_metrics")
        if not self.owns("compute_loss") or measures or self._results[0].metric is None:
            return None
        return unwrap(model).register_forward_hook(self._see)

    def _see(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self.seen = output

    def _note(self, epoch: int, logs: dict[str, Any]) -> None:
        """Update the attributes of the trainer from the logs."""
        self.epoch = epoch
        self.lr_value = logs.get("lr", self.lr_value)
        self.loss_value = logs.get("epoch_loss", self.loss_value)
        self.metric_value = logs.get("epoch_metric", self.metric_value)


@contextmanager
def _in_eval_mode(model: Any) -> Iterator[None]:
    """Set a model to evaluation mode without gradients, and every module back afterwards."""
    module = model if isinstance(model, nn.Module) else model.model
    before = [(one, one.training) for one in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for one, training in before:
            one.training = training


def _saved(native: stoker.Trainer, folder: Path) -> None:
    native.save(folder)
    if dist.is_main():
        shutil.rmtree(folder / files.LOCK, ignore_errors=True)
