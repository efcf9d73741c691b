"""`WandbLoggerCallback`: log results to Weights & Biases."""

from importlib import import_module
from typing import Any

from stoker.dialects.orca.learn.pytorch.callbacks.base import Callback
from stoker.dialects.orca.learn.pytorch.torch_runner import TorchRunner


class WandbLoggerCallback(Callback):
    """Log the results of each epoch on rank 0, and optionally the config and the model.

    Further arguments are passed to ``wandb.init``.
    """

    def __init__(
        self, project: str, log_config: bool = False, watch_model: bool = False, **init_args: Any
    ) -> None:
        self.project, self.log_config, self.watch_model = project, log_config, watch_model
        self.init_args = init_args
        self._run: Any = None

    def before_run(self, runner: TorchRunner) -> None:
        """Start a W&B run."""
        if runner.rank != 0:
            return
        config = {"config": dict(runner.config)} if self.log_config else {}
        self._run = import_module("wandb").init(project=self.project, **config, **self.init_args)
        if self.watch_model:
            self._run.watch(runner.engine.model)

    def after_train_epoch(self, runner: TorchRunner) -> None:
        """Log the epoch."""
        if self._run is not None:
            self._run.log(runner.epoch_stats, step=runner.global_step)

    def after_run(self, runner: TorchRunner) -> None:
        """Finish the W&B run."""
        if self._run is not None:
            self._run.finish()
            self._run = None
