"""`Trainer`: train a model with a config and data."""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

import stoker
from stoker import Hook
from stoker.checkpoint import Checkpoints
from stoker.core import dist
from stoker.core.log import get_logger
from stoker.dialects.adapter import with_names
from stoker.dialects.towhee import folders, parts
from stoker.dialects.towhee.callback import (
    Callback,
    CallbackList,
    ModelCheckpointCallback,
    TrainerControl,
)
from stoker.dialects.towhee.metrics import get_metric_by_name
from stoker.dialects.towhee.modelcard import ModelCard
from stoker.dialects.towhee.relay import (
    USER_EVALUATION,
    Flags,
    OwnedStep,
    Relay,
    Tally,
    adapted,
)
from stoker.dialects.towhee.training_config import TrainingConfig, off, tell
from stoker.engine import unwrap
from stoker.nn import LayerFreezer
from stoker.rundir import files
from stoker.storage import local_path

_log = get_logger()
_OVERRIDABLE = ("train_step", "compute_loss", "compute_metric", "evaluate", "evaluate_step")


class Trainer:
    """Train a model as configured by a `TrainingConfig`.

        trainer = Trainer(model, TrainingConfig(output_dir="out"), train_dataset=data)
        trainer.train()

    An interrupted training resumes when the same call is repeated. Override
    ``compute_loss``, ``train_step``, ``evaluate_step``, ``compute_metric`` or ``evaluate``.

    Loaders are built from the datasets unless they are given.
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
        self.epoch = 0
        self.lr_value = self.loss_value = self.metric_value = 0.0
        self.seen: Any = None  # the last outputs, if a metric needs them
        self.relay: Relay
        self._native: stoker.Trainer | None = None
        self._fitting = False
        self._loaded: Path | None = None
        self._made: dict[str, Any] = {}  # the settings of the optimizer and the loss
        self._names: dict[str, str] = {}  # the names of those set by the user
        self._built_in: list[Callback] = []
        self._loaders: tuple[Any, Any] = (None, None)
        self._watch: Any = None

    # Training

    def train(self, resume_checkpoint_path: str | Path | None = None) -> None:
        """Train until ``epoch_num`` epochs are finished, and save the result as ``final_epoch``.

        ``resume_checkpoint_path`` is a folder to resume from, such as ``out/epoch_1``.
        """
        configs, output_dir = self.configs, local_path(self.configs.output_dir, "output_dir")
        configs.check()
        path = resume_checkpoint_path or self._loaded
        resume = folders.found(path) if path is not None else None
        if resume is None:
            may = configs.overwrite_output_dir or self._native is not None
            fresh = not folders.was_interrupted(output_dir, configs.to_dict(), may)
        else:
            fresh = output_dir / files.CHECKPOINTS not in resume.parents
        native = self._build(keep_counters=resume is None and fresh, fresh=fresh)
        tell(configs)
        before = native.run.step
        self._fitting = True
        try:
            native.fit(
                self._loaders[0],
                self._evaluation_data(),
                epochs=configs.epoch_num,
                validate_every=parts.validate_every(configs),
                resume=resume or "auto",
            )
        finally:
            self._fitting = False
        self.epoch, self._loaded = native.run.epoch, None
        if native.run.requests.signal or native.run.step == before:
            return  # keep the checkpoints to resume from
        self.save(output_dir / "final_epoch")
        folders.forget(output_dir)

    def train_step(self, model: nn.Module, inputs: Any) -> dict[str, Any]:
        """Run one update and return the logs: step_loss, epoch_loss, epoch_metric."""
        native = self._ready()
        run, tally = native.run, self.relay.train
        run.batches = [inputs]
        stoker.Step.train(native.step, run)
        tally.given = None
        tally.add(run, run.outputs[-1], run.sizes[0])
        return tally.values()

    def compute_loss(self, model: nn.Module, inputs: Any) -> Any:
        """Return the loss of one batch of inputs and labels."""
        return self.loss(model(inputs[0]), inputs[1])

    def compute_metric(self, model: nn.Module, inputs: Any) -> Any:
        """Add one batch and return the metric over the pass so far."""
        self.metric.update(model(inputs[0]), inputs[1])
        return self.metric.compute()

    def update_metrics(
        self, model: nn.Module, inputs: Any, step_loss: Any, training: bool = True
    ) -> tuple[Any, Any]:
        """Add the loss and metric of a custom step; return both over the pass so far."""
        run, tally = self._ready().run, self.relay.train if training else self.relay.evaluation
        tally.given = None
        tally.add(run, stoker.Output(torch.as_tensor(step_loss)), run.sizes[0])
        if tally.metric is not None and not self.owns("compute_metric"):
            with run.engine.mode(training=False), torch.no_grad():
                self.compute_metric(model, inputs)
        values = tally.values()
        return tuple(values.get(f"{tally.prefix}epoch_{one}") for one in ("loss", "metric"))  # type: ignore[return-value]

    # Looking at a model

    def evaluate(self, model: nn.Module, logs: dict[str, Any] | None = None) -> dict[str, Any]:
        """Evaluate, and put eval_epoch_loss and eval_epoch_metric into the logs."""
        logs = {} if logs is None else logs
        if unwrap(model) is not unwrap(self.model):
            raise ValueError(f"evaluate got another {type(model).__name__} than the trainer has")
        native, loader = self._ready(), self._loaders[1]
        if loader is None:
            return logs
        if self._fitting:  # by an `evaluate` of the user's that calls this one
            native = stoker.Trainer(native.engine, self._observers, step=native.step)
        native.evaluate(loader)
        logs.update({n: v for n, v in self.relay.logs.items() if n.startswith("eval_")})
        return logs

    def evaluate_step(self, model: nn.Module, inputs: Any) -> dict[str, Any]:
        """Run one evaluation batch; return eval_step_loss, eval_epoch_loss, eval_epoch_metric."""
        native = self._ready()
        tally, forward = self.relay.evaluation, native.step.forward
        tally.given = None
        tally.add(native.run, forward(native.engine, inputs), native.run.sizes[0])
        return tally.values()

    def predict(self, inputs: Any) -> Any:
        """Return the outputs for one batch of inputs, or for a loader of them."""
        return self._ready().predict(inputs)

    # Saving

    def save(self, path: str | Path, overwrite: bool = True) -> None:
        """Save the complete training state as a folder; ``overwrite`` replaces an existing one."""
        target, native = Path(path), self._ready()
        if target.exists() and not overwrite:
            raise FileExistsError(f"'{target}' already exists, and overwrite is False")
        folders.publish(target, lambda to: _saved(native, to), self._put)

    def load(self, path: str | Path) -> None:
        """Load saved weights and the epoch; the next train() resumes from there."""
        self._loaded = folders.found(path)
        shared = Checkpoints(self._loaded.parent).load(self._loaded).shared
        unwrap(self.model).load_state_dict(shared["model"])
        self.epoch = shared["run"]["epoch"]
        self._note(self.epoch, shared["hooks"].get("Relay", {}).get("logs", {}))

    def _put(self, folder: Path) -> None:
        """Write the files of Towhee next to a checkpoint."""
        engine = self._ready().engine
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
        card.describe(unwrap(self.model), self.train_dataset or self.train_dataloader)
        card.training_config = self.configs.to_dict() | self._names
        card.training_summary = {"epoch": self.epoch, "lr": self.lr_value, **results}
        card.save_model_card(folder / "README.md")

    # Settings

    def add_callback(self, callback: Callback, singleton: bool = True) -> None:
        """Add a callback; with ``singleton`` it replaces others of its class."""
        self.callbacks.add_callback(callback, singleton)

    def set_optimizer(self, optimizer: Optimizer, optimizer_name: str | None = None) -> None:
        """Train with this optimizer; the name appears in the model card."""
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"expected an optimizer of the model, got {optimizer!r}")
        self.optimizer, self.lr_scheduler = optimizer, None
        self._made.pop("optimizer", None)
        self._names["optimizer"] = optimizer_name or type(optimizer).__name__

    def set_loss(self, loss: Any, loss_name: str | None = None) -> None:
        """Train with this loss function; the name appears in the model card."""
        if not callable(loss):
            raise TypeError(f"expected a loss function, got {loss!r}")
        self.loss = loss
        self._made.pop("loss", None)
        self._names["loss"] = loss_name or type(loss).__name__

    @property
    def metric(self) -> Any:
        """The metric of the current pass of training or evaluation."""
        return (self.relay.evaluation if self.relay.evaluating else self.relay.train).metric

    # Properties

    def owns(self, method: str) -> bool:
        """Return whether a method is overridden."""
        return getattr(type(self), method) is not getattr(Trainer, method)

    @property
    def shown(self) -> Any:
        """The model for overridden methods; with several processes, the engine."""
        engine = self._ready().engine
        return engine.model if engine.layout.processes == 1 else engine

    def prepare_inputs(self, inputs: Any) -> Any:
        """Return a batch on the device."""
        return self._ready().engine.place(inputs)

    def set_train_mode(self, model: nn.Module) -> None:
        """Set a model to training mode, with batch norms as configured."""
        if not self.relay.evaluating:
            model.train()
            if self.configs.freeze_bn:
                LayerFreezer(model).freeze_bn()

    def get_train_dataloader(self) -> Any:
        """Return the training loader, or None."""
        if self.train_dataloader is not None or self.train_dataset is None:
            return self.train_dataloader
        return parts.loader_of(self.configs, self.train_dataset, training=True)

    def get_eval_dataloader(self) -> Any:
        """Return the evaluation loader, or None."""
        if self.eval_dataloader is not None or self.eval_dataset is None:
            return self.eval_dataloader
        return parts.loader_of(self.configs, self.eval_dataset, training=False)

    def setup_before_train(self) -> None:
        """Build the components of the config; train() calls this."""
        self.configs.check()
        self._build(keep_counters=True)

    # Building

    def _ready(self) -> stoker.Trainer:
        return self._native if self._native is not None else self._build(keep_counters=False)

    def _build(self, *, keep_counters: bool, fresh: bool = False) -> stoker.Trainer:
        """Build the Stoker trainer.

        Args:
            keep_counters: Continue the counters of the last trainer.
            fresh: Replace an interrupted training in the output folder.
        """
        previous = self._native.run if keep_counters and self._native is not None else None
        self._loaders = (self.get_train_dataloader(), self.get_eval_dataloader())
        self._make_parts(previous.step if previous is not None else 0)
        for one in self._built_in:
            self.callbacks.pop_callback(one)
        usual = parts.callbacks_of(self.configs, self.trainercontrol, self._loaders[0])
        taken = {type(one).__name__ for one in self.callbacks}
        self._built_in = [one for one in usual if type(one).__name__ not in taken]
        for one in self._built_in:
            self.callbacks.add_callback(one)
        logs = self.relay.logs if previous is not None else {}
        self.relay = self._make_relay()
        self.relay.logs |= logs
        engine = parts.engine_of(self.configs, self.model, self.optimizer, self.loss)
        if self.lr_scheduler is not None:
            engine.lr_schedulers[""] = self.lr_scheduler
        if engine.layout.processes > 1 and self.owns("train_step"):
            raise ValueError(
                "train_step is overridden, so gradients are not shared between processes: "
                "override compute_loss instead"
            )
        step = OwnedStep(self) if any(map(self.owns, _OVERRIDABLE)) else None
        stock = parts.hooks_of(self.configs, self.callbacks, self._built_in)
        output_dir = local_path(self.configs.output_dir, "output_dir")
        saving = [one for one in self.callbacks if isinstance(one, ModelCheckpointCallback)]
        named = output_dir / saving[-1].filepath if saving else None
        kept = folders.Folders(output_dir, named, self.configs.to_dict(), self._put, fresh=fresh)
        called = [adapted(one, name, self.relay.logs) for one, name in with_names(self.callbacks)]
        flags = Flags(self.callbacks, self.trainercontrol, self.relay)
        self._observers: list[Hook] = [self.relay, *called, flags]
        every: list[Hook] = [*self._observers, kept, *stock]
        native = stoker.Trainer(engine, every, step=step, seed=self.configs.seed)
        for name in ("step", "epoch", "samples") if previous is not None else ():
            setattr(native.run, name, getattr(previous, name))
        self._native = native
        return native

    def _make_parts(self, steps: int) -> None:
        """Build loss, optimizer and schedule, or reuse them if the config has not changed."""
        configs, loader = self.configs, self._loaders[0]
        if self.loss is None or self._made.get("loss", configs.loss) != configs.loss:
            self.loss, self._made["loss"] = parts.loss_of(configs), configs.loss
        if loader is None:
            return
        spec = (configs.optimizer, configs.lr)
        if self.optimizer is None or self._made.get("optimizer", spec) != spec:
            self.optimizer = parts.optimizer_of(configs, self.model)
            self._made["optimizer"], self.lr_scheduler = spec, None
        length = len(loader) if hasattr(loader, "__len__") else None
        total = None if length is None else max(1, length) * configs.epoch_num
        self.lr_scheduler = parts.scheduler_of(
            configs, self.optimizer, total, (steps, self.lr_scheduler)
        )

    def _make_relay(self) -> Relay:
        name, own = self.configs.metric, self.owns("compute_metric")
        wanted = isinstance(name, str) and not off(name)
        on_training = self.configs.eval_strategy != "eval_epoch"
        tallies = []
        for prefix, counts in (("", on_training), ("eval_", True)):
            metric = get_metric_by_name(str(name)) if wanted and counts else None
            measure = (lambda batch: self.compute_metric(self.shown, batch)) if own else None
            tallies.append(Tally(prefix, metric, measure if counts else None))
        if self._watch is not None:
            self._watch.remove()
            self._watch = None
        if self.owns("compute_loss") and wanted and not own:
            self._watch = unwrap(self.model).register_forward_hook(self._see)
        return Relay(self.callbacks, self.trainercontrol, tallies[0], tallies[1], self._note)

    def _evaluation_data(self) -> Any:
        """Return the evaluation loader, or a placeholder for an overridden ``evaluate``."""
        return USER_EVALUATION if self.owns("evaluate") else self._loaders[1]

    def _see(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self.seen = output

    def _note(self, epoch: int, logs: dict[str, Any]) -> None:
        """Update the attributes of the trainer from the logs."""
        self.epoch = epoch
        self.lr_value = logs.get("lr", self.lr_value)
        self.loss_value = logs.get("epoch_loss", self.loss_value)
        self.metric_value = logs.get("epoch_metric", self.metric_value)


def _saved(native: stoker.Trainer, folder: Path) -> None:
    native.save(folder)
    if dist.is_main():
        shutil.rmtree(folder / files.LOCK, ignore_errors=True)
