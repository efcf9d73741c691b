"""`Estimator`: train, evaluate and predict, locally or on a cluster."""

import logging
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import nn

from stoker import Engine, Trainer, launch, load_weights
from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.names import step_in_name
from stoker.core import dist
from stoker.core.errors import CheckpointError, check_count, did_you_mean
from stoker.data.feeder import count_of
from stoker.dialects import torch_files
from stoker.dialects.orca.callbacks import Callback, make_only_mainCallback
from stoker.dialects.orca.common import OrcaContext, start_ray_on_spark
from stoker.dialects.orca.loaders import predicted, sendable
from stoker.dialects.orca.model_checkpoint import ModelCheckpoint, checkpoint_of
from stoker.dialects.orca.torch_runner import STOPPED, as_state, state_of
from stoker.dialects.orca.worker import Done, Job, Parts, work
from stoker.engine import unwrap
from stoker.hooks import SaveWeights
from stoker.resume.lookup import find_checkpoint
from stoker.rundir import files
from stoker.storage import local_path

_BACKENDS = ("local", "ray", "spark", "horovod", "torch_distributed")
_WEIGHTS = ".safetensors"


class Estimator:
    """Build estimators from creator functions."""

    @staticmethod
    def from_torch(
        *,
        model: Any = None,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        backend: str = "spark",
        config: Any = None,
        workers_per_node: int = 1,
        scheduler_creator: Any = None,
        scheduler_step_freq: Literal["epoch", "batch"] = "epoch",
        use_tqdm: bool = False,
        model_dir: str | Path | None = None,
        sync_stats: bool = False,
        log_level: int = logging.INFO,
        log_to_driver: bool = True,
    ) -> "PyTorchEstimator":
        """Return an estimator for a model.

        Creators are ``model(config)``, ``optimizer(model, config)``, ``loss(config)`` and
        ``scheduler_creator(optimizer, config)``; the first three may be the objects themselves, and
        the loss a class, or None if a `MainCallback` computes it. Without a model, `load` a file
        that ``save(entire=True)`` wrote. Metrics are one or several of `bigdl.orca.learn.metrics`,
        functions of outputs and targets, metrics of torchmetrics, or names. With a ``model_dir``,
        which all workers reach, the same script started again resumes.

        With ``reduce_results=False``, workers report the losses and metrics of all if
        ``sync_stats`` is set, else their own. Without ``log_to_driver`` they log errors alone. The
        backends "horovod" and "torch_distributed" (its name in 2.0) are "ray".
        """
        for name, value, known in (
            ("backend", backend, _BACKENDS),
            ("scheduler_step_freq", scheduler_step_freq, ("epoch", "batch")),
        ):
            if value not in known:
                near = did_you_mean(str(value), known)
                raise ValueError(f"{name} is one of {', '.join(known)}, got {value!r}{near}")
        if model is not None and not isinstance(model, nn.Module) and not callable(model):
            raise TypeError(f"model is a {type(model).__name__}, expected a creator or a module")
        if isinstance(config, Mapping) and "batch_size" in config:
            raise ValueError("config has a batch_size: give it to fit(), evaluate() and predict()")
        check_count("workers_per_node", workers_per_node)
        freq, config = scheduler_step_freq, {} if config is None else copy(config)
        parts = Parts(model, optimizer, loss, scheduler_creator, freq, metrics, config)
        backend = "ray" if backend in _BACKENDS[3:] else backend
        workers = workers_per_node * (OrcaContext.num_nodes if backend != "local" else 1)
        estimator = PyTorchEstimator(parts, backend, workers, model_dir, bar=use_tqdm)
        estimator.synced = sync_stats
        estimator.log_level = log_level if log_to_driver else logging.ERROR
        logging.getLogger("stoker").setLevel(log_level)
        return estimator

    latest_checkpoint = staticmethod(ModelCheckpoint.get_latest_checkpoint)


class PyTorchEstimator:
    """A model and its training state.

    Between two calls the state is a checkpoint, which the processes of a cluster load and replace.
    """

    def __init__(
        self, parts: Parts, backend: str, workers: int, model_dir: str | Path | None, *, bar: bool
    ) -> None:
        self._parts, self._backend, self.num_workers, self._bar = parts, backend, workers, bar
        self.synced, self.log_level = False, logging.INFO
        self._folder = local_path(model_dir, "model_dir") if model_dir is not None else None
        self._scratch: weakref.finalize[..., Any] | None = None  # a temporary folder
        self._engine: Engine | None = None
        self._at: Path | None = None
        self._weights: Path | None = None
        self._epochs = self._loads = self._imports = 0

    # Training, evaluation and prediction

    def fit(
        self,
        data: Any,
        epochs: int = 1,
        max_steps: int | None = None,
        batch_size: int = 32,
        profile: bool = False,
        reduce_results: bool = True,
        feature_cols: Sequence[str] | None = None,
        label_cols: Sequence[str] | None = None,
        validation_data: Any = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> list[Any]:
        """Train for ``epochs`` more epochs, or until ``max_steps`` updates in total.

        Data is ``(config, batch_size) -> loader``, a loader, a dataset, ``{"x": …, "y": …}``,
        `XShards`, or a DataFrame of Spark or pandas or a Dataset of Ray, whose ``feature_cols`` the
        model gets and whose ``label_cols`` are its targets. ``batch_size`` is of all workers
        together. With as many partitions of a DataFrame or of shards as workers, each gets one. A
        cluster shuffles the training data of a creator, as Orca does, even if its loader does not.

        Returns the stats of each epoch: epoch, batch_count, num_samples, train_loss,
        last_train_loss, val_loss, val_num_samples, val_<metric>, and with ``profile`` the mean
        seconds; without ``reduce_results``, a list of the stats of each worker.
        """
        if self._parts.optimizer is None:
            raise ValueError("fit() needs an optimizer: Estimator.from_torch(optimizer=…)")
        goal, limit = self._epochs + (count_of("epochs", epochs) or 0), None
        if max_steps is not None:
            goal, limit = self._epochs, count_of("max_steps", max_steps)
        before = self._epochs
        self._choose_folder(callbacks)
        job = replace(
            self._job("fit", data, batch_size, callbacks, feature_cols, label_cols, reduce_results),
            validation=sendable(validation_data, feature_cols, label_cols),
            epochs=goal,
            max_steps=limit,
            profile=profile,
        )
        done = self._do(job)
        ended = limit is not None or done.stop_reason == STOPPED
        self._epochs = done.epoch if ended else goal
        if done.step:  # else an earlier attempt is further than this fit
            saved = Checkpoints(Path(job.folder) / files.CHECKPOINTS).list()
            self._at = next(p for p in saved if step_in_name(p.name) == done.step)
        return [r for r in done.rows if (r if reduce_results else r[0])["epoch"] > before]

    def evaluate(
        self,
        data: Any,
        batch_size: int = 32,
        num_steps: int | None = None,
        profile: bool = False,
        reduce_results: bool = True,
        feature_cols: Sequence[str] | None = None,
        label_cols: Sequence[str] | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> Any:
        """Return the results over the data, or over its first ``num_steps`` batches.

        They are val_loss, num_samples, metrics under their names, and with ``profile`` the mean
        seconds; without ``reduce_results``, a list of the results of each worker.
        """
        job = self._job(
            "evaluate", data, batch_size, callbacks, feature_cols, label_cols, reduce_results
        )
        return self._do(replace(job, limit=num_steps, profile=profile)).result

    def predict(
        self,
        data: Any,
        batch_size: int = 32,
        feature_cols: Sequence[str] | None = None,
        output_cols: Sequence[str] | None = None,
        profile: bool = False,
        callbacks: Sequence[Callback] | None = None,
    ) -> Any:
        """Return the outputs of the model as arrays, in the order of the data.

        Shards are returned with "prediction", or "output_0" and so on for several outputs; a
        DataFrame with the columns ``output_cols``, by default "prediction"; a Dataset of Ray with
        "prediction_result". ``profile`` logs the mean seconds.
        """
        if output_cols is not None and not feature_cols:
            raise ValueError("output_cols are about a DataFrame: give feature_cols, too")
        job = self._job("predict", data, batch_size, callbacks, feature_cols, None, True)
        outputs = self._do(replace(job, profile=profile)).result
        return predicted(data, job.data, outputs, output_cols)

    # The state

    def get_model(self) -> nn.Module:
        """Return the model with its current weights."""
        return self._here().engine.model

    def get_state_dict(self) -> dict[str, Any]:
        """Return epoch, updates, and the states of model, optimizer and scheduler."""
        trainer = self._here()
        return state_of(trainer.engine, trainer.run)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a state: that of `get_state_dict`, or the weights of the model."""
        found = as_state(state)
        self._forget()
        trainer = Trainer(self._parts.engine(), [])
        engine = trainer.engine
        unwrap(engine.model).load_state_dict(found["models"][0])
        _restore(engine.optimizers, found.get("optimizers", ()))
        _restore(engine.lr_schedulers, found.get("schedulers", ()))
        trainer.run.epoch = self._epochs = found.get("epoch", 0)
        trainer.run.step = found.get("global_step", 0)
        self._imports += 1
        self._at = trainer.save(self._state_folder() / f"imported-{self._imports}")

    def save(self, model_path: str | Path, entire: bool = False) -> str:
        """Save the state to a file that `torch.load` reads with ``weights_only=True``.

        With ``entire`` the file holds the model itself, and can be loaded where its class is
        imported. A path that ends in ``.safetensors`` gets the weights alone.
        """
        path = local_path(model_path)
        if entire:
            torch_files.write(path, self.get_model())
        elif path.suffix == _WEIGHTS:
            SaveWeights(path).act(self._here().run)
        else:
            torch_files.write(path, self.get_state_dict())
        dist.barrier()  # other ranks may read the file next
        return str(model_path)

    def load(self, model_path: str | Path) -> None:
        """Load a state, a model, weights, or a checkpoint (a folder, or its name) for what follows.

        A file with a model gives the estimator its model, if it has none, else its weights.
        """
        path = local_path(model_path)
        if not path.exists():
            raise CheckpointError(f"there is no '{path}'")
        if path.resolve().suffix == _WEIGHTS:
            self._forget()
            self._weights = path
        elif path.is_dir() or checkpoint_of(path) is not None:
            self._forget()
            self._at = find_checkpoint(checkpoint_of(path) or path, None)
            self._epochs = self._here().run.epoch
        else:
            found = torch_files.read(path)
            if self._parts.model is None and isinstance(found, nn.Module):
                self._parts = replace(self._parts, model=partial(_copy, found))
            self.load_state_dict(found)

    save_checkpoint = save
    load_checkpoint = load

    def shutdown(self) -> None:
        """Release the model and delete temporary files."""
        self._engine = self._at = None
        if self._scratch is not None:
            self._scratch()
            self._scratch = None

    # How it is done

    def _job(
        self,
        task: Literal["fit", "evaluate", "predict"],
        data: Any,
        batch_size: int,
        callbacks: Sequence[Callback] | None,
        feature_cols: Sequence[str] | None,
        label_cols: Sequence[str] | None,
        reduce_results: bool,
    ) -> Job:
        if self._backend == "local" and self.num_workers == 1:
            self._engine = self._engine or self._fresh()  # it joins other processes
        check_count("batch_size", batch_size)
        return Job(
            self._parts,
            task,
            sendable(data, feature_cols, label_cols),
            batch_size,
            make_only_mainCallback(callbacks)[1],
            str(self._state_folder()),
            self._folder is not None,
            at=str(self._at) if self._at is not None else None,
            weights=str(self._weights) if self._weights is not None else None,
            bar=self._bar,
            per_worker=not reduce_results,
            synced=self.synced,
            serialized=OrcaContext.serialize_data_creator,
            shuffles=self._backend != "local",
            log_level=self.log_level,
        )

    def _do(self, job: Job) -> Done:
        if self._backend == "local" and self.num_workers == 1:
            return work(job, self._engine)
        started: dict[str, Any] = {"nproc": self.num_workers}
        if self._backend != "local":
            started = {"on": self._backend, "workers": self.num_workers}
        if self._backend == "ray":
            start_ray_on_spark(self.num_workers)
        found: Done = launch.run(work, job, **started)
        return found

    def _forget(self) -> None:
        """Forget the state, before another is loaded."""
        self._loads += self._at is not None
        self._engine = self._at = self._weights = None
        self._epochs = 0

    def _fresh(self) -> Engine:
        """Return the components with the loaded weights and state."""
        engine = self._parts.engine()
        if self._at is not None:
            Trainer(engine, []).load(self._at)
        return engine

    def _here(self) -> Trainer:
        """Return an engine with the current state."""
        trainer = Trainer(self._engine or self._fresh(), [])
        if self._at is not None:
            trainer.load(self._at)
        elif self._weights is not None:
            load_weights(trainer.engine.model, self._weights)
        if self._backend == "local" and self.num_workers == 1:
            self._engine = trainer.engine
        return trainer

    def _choose_folder(self, callbacks: Sequence[Callback] | None) -> None:
        """Without a ``model_dir``, use the folder of a `ModelCheckpoint`."""
        found = [one for one in callbacks or () if isinstance(one, ModelCheckpoint)]
        if found and self._folder is None:
            self._folder = found[0].folder

    def _state_folder(self) -> Path:
        """Return the checkpoint folder, the same for all processes."""
        base = self._folder
        if base is None:
            if self._scratch is None:
                made = dist.broadcast_from_rank0(
                    tempfile.mkdtemp(prefix="orca-") if dist.is_main() else ""
                )
                self._scratch = weakref.finalize(self, _remove, made)
            base = Path(self._scratch.peek()[2][0])  # type: ignore[index]
        return base / f"after-load-{self._loads}" if self._loads else base


def _copy(model: nn.Module, config: Any) -> nn.Module:
    return deepcopy(model)


def _restore(objects: Mapping[str, Any], states: Sequence[Any]) -> None:
    for one, state in zip(objects.values(), states, strict=False):
        one.load_state_dict(state)


def _remove(folder: str) -> None:
    if dist.is_main():
        shutil.rmtree(folder, ignore_errors=True)
