"""`Estimator`: train, evaluate and predict, locally or on a cluster."""

import logging
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from stoker import Engine, Trainer, launch, load_weights
from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.names import step_in_name
from stoker.core import dist
from stoker.core.errors import CheckpointError, did_you_mean
from stoker.data.feeder import count_of
from stoker.dialects.orca.callbacks import Callback, make_only_mainCallback
from stoker.dialects.orca.common import OrcaContext
from stoker.dialects.orca.loaders import predicted, sendable
from stoker.dialects.orca.model_checkpoint import ModelCheckpoint
from stoker.dialects.orca.torch_runner import STOPPED
from stoker.dialects.orca.worker import Done, Job, Parts, work
from stoker.hooks import SaveWeights
from stoker.resume.lookup import find_checkpoint
from stoker.rundir import files
from stoker.storage import local_path

_BACKENDS = ("local", "ray", "spark")


class Estimator:
    """Build estimators from creator functions."""

    @staticmethod
    def from_torch(
        *,
        model: Any,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        backend: str = "spark",
        config: Mapping[str, Any] | None = None,
        workers_per_node: int = 1,
        scheduler_creator: Any = None,
        scheduler_step_freq: Literal["epoch", "batch"] = "epoch",
        use_tqdm: bool = False,
        model_dir: str | Path | None = None,
        sync_stats: bool = True,
        log_level: int = logging.INFO,
        log_to_driver: bool = True,
    ) -> "PyTorchEstimator":
        """Return an estimator for a model.

        Creators are ``model(config)``, ``optimizer(model, config)``, ``loss(config)`` and
        ``scheduler_creator(optimizer, config)``; the first three may be the objects themselves, and
        the loss a class, or None if a `MainCallback` computes it. Metrics are one or several of
        `bigdl.orca.learn.metrics`, of torchmetrics, or names. With a ``model_dir``, which all
        workers reach, the same script started again resumes. ``sync_stats`` and
        ``log_to_driver`` cannot be turned off.
        """
        if backend not in _BACKENDS:
            near = did_you_mean(str(backend), _BACKENDS) or " (horovod's averaging is what all do)"
            raise ValueError(f"backend is 'local', 'ray' or 'spark', got {backend!r}{near}")
        if scheduler_step_freq not in ("epoch", "batch"):
            raise ValueError(
                f"scheduler_step_freq is 'epoch' or 'batch', not {scheduler_step_freq!r}"
            )
        if not sync_stats or not log_to_driver:
            raise ValueError("sync_stats and log_to_driver cannot be turned off: leave them out")
        if not isinstance(model, nn.Module) and not callable(model):
            raise TypeError(f"model is a {type(model).__name__}, expected a creator or a module")
        if workers_per_node < 1:
            raise ValueError(
                f"workers_per_node must be an integer of at least 1, got {workers_per_node}"
            )
        logging.getLogger("stoker").setLevel(log_level)
        freq = scheduler_step_freq
        parts = Parts(model, optimizer, loss, scheduler_creator, freq, metrics, dict(config or {}))
        workers = workers_per_node * (OrcaContext.num_nodes if backend != "local" else 1)
        return PyTorchEstimator(parts, backend, workers, model_dir, bar=use_tqdm)

    @staticmethod
    def latest_checkpoint(checkpoint_dir: str | Path) -> str:
        """Return the newest complete checkpoint in a folder, also of an unfinished run."""
        return str(find_checkpoint(checkpoint_dir, None))


class PyTorchEstimator:
    """A model and its training state.

    Between two calls the state is a checkpoint, which the processes of a cluster load and replace.
    """

    def __init__(
        self, parts: Parts, backend: str, workers: int, model_dir: str | Path | None, *, bar: bool
    ) -> None:
        self._parts, self._backend, self._workers, self._bar = parts, backend, workers, bar
        self._folder = local_path(model_dir, "model_dir") if model_dir is not None else None
        self._scratch: weakref.finalize[..., Any] | None = None  # a temporary folder
        self._engine: Engine | None = None
        self._at: Path | None = None
        self._weights: Path | None = None
        self._epochs = self._loads = 0

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
    ) -> list[dict[str, Any]]:
        """Train for ``epochs`` more epochs, or until ``max_steps`` updates in total.

        Data is ``(config, batch_size) -> loader``, a loader, a dataset, ``{"x": …, "y": …}``, or a
        DataFrame of Spark or pandas, whose ``feature_cols`` the model gets and whose ``label_cols``
        are its targets. ``batch_size`` is of all workers together.

        Returns:
            The stats of each epoch: epoch, batch_count, num_samples, train_loss, last_train_loss,
            val_loss, val_num_samples, val_<metric>, and with ``profile`` the mean seconds.
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
        return [row for row in done.rows if row["epoch"] > before]

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
    ) -> dict[str, Any]:
        """Return the results over the data, or over its first ``num_steps`` batches."""
        if profile:
            raise ValueError("profile is about fit()")
        job = self._job(
            "evaluate", data, batch_size, callbacks, feature_cols, label_cols, reduce_results
        )
        result: dict[str, Any] = self._do(replace(job, limit=num_steps)).result
        return result

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

        A DataFrame is returned with the columns ``output_cols``, by default "prediction".
        """
        if profile:
            raise ValueError("profile is about fit()")
        if output_cols is not None and not feature_cols:
            raise ValueError("output_cols are about a DataFrame: give feature_cols, too")
        job = self._job("predict", data, batch_size, callbacks, feature_cols, None, True)
        return predicted(data, self._do(job).result, output_cols)

    # The state

    def get_model(self) -> nn.Module:
        """Return the model with its current weights."""
        return self._here().engine.model

    def get_state_dict(self) -> dict[str, Any]:
        """Return epoch, updates, and the states of model, optimizer and scheduler."""
        trainer = self._here()
        state, run = trainer.engine.state_dict(), trainer.run
        return {
            "epoch": run.epoch,
            "iteration": run.step,
            "global_step": run.step,
            "models": [state["model"]],
            "optimizers": list(state["optimizers"].values()),
            "schedulers": list(state["lr_schedulers"].values()),
        }

    def save(self, path: str | Path, entire: bool = False) -> str:
        """Save the weights as a safetensors file; `save_checkpoint` saves the complete state."""
        if entire:
            raise ValueError(
                "entire=True would pickle the model, and what is pickled runs code when it is "
                "loaded: save() keeps its weights, save_checkpoint() all that training needs"
            )
        SaveWeights(path).act(self._here().run)
        return str(path)

    def load(self, path: str | Path) -> None:
        """Load weights (a file) or a checkpoint (a folder) for the next call."""
        if not Path(path).exists():
            raise CheckpointError(f"there is no '{path}'")
        self._loads += self._at is not None
        self._engine = None
        if Path(path).is_file():
            self._at, self._weights, self._epochs = None, Path(path), 0
            return
        self._at, self._weights = find_checkpoint(path, None), None
        self._epochs = self._here().run.epoch

    def save_checkpoint(self, path: str | Path) -> str:
        """Save the complete training state to a folder."""
        if self._at is None:
            return str(self._here().save(path))
        copy = Path(path) / self._at.name
        shutil.copytree(self._at, copy, dirs_exist_ok=True)
        return str(copy)

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
        if not reduce_results:
            raise ValueError("reduce_results=False: stats are of all workers together, always")
        if self._backend == "local" and self._workers == 1:
            self._engine = self._engine or self._fresh()  # it joins other processes
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size must be an integer of at least 1, got {batch_size!r}")
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
        )

    def _do(self, job: Job) -> Done:
        if self._backend == "local" and self._workers == 1:
            return work(job, self._engine)
        started: dict[str, Any] = {"nproc": self._workers}
        if self._backend != "local":
            started = {"on": self._backend, "workers": self._workers}
        found: Done = launch.run(work, job, **started)
        return found

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
        if self._backend == "local" and self._workers == 1:
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


def _remove(folder: str) -> None:
    if dist.is_main():
        shutil.rmtree(folder, ignore_errors=True)
