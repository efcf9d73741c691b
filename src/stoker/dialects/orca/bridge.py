"""Run Orca's `MainCallback` as a `Step` and its callbacks as hooks."""

import math
from collections.abc import Mapping
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker import Engine, Hook, Output, Priority, Run, Step
from stoker.core import dist
from stoker.core.log import get_logger
from stoker.core.timers import MultiTimer
from stoker.dialects.adapter import Adapter, overridden
from stoker.dialects.orca.callbacks import Callback, MainCallback
from stoker.dialects.orca.metrics import MetricOfRun
from stoker.dialects.orca.stats import Stats, plain
from stoker.dialects.orca.torch_runner import TorchRunner

_log = get_logger()

POINTS = {
    "before_run": ("before_run", "on_run_begin"),
    "before_epoch": ("before_train_epoch", "before_epoch", "on_epoch_begin"),
    "before_step": ("before_train_iter", "before_iter", "on_iter_begin"),
    "after_step": ("after_train_iter", "after_iter", "on_iter_end"),
    "before_val": ("before_val_epoch", "before_epoch", "on_epoch_begin"),
    "before_val_step": ("before_val_iter", "before_iter", "on_iter_begin"),
    "after_val_step": ("after_val_iter", "after_iter", "on_iter_end"),
    "after_val": ("after_val_epoch", "after_epoch", "on_epoch_end"),
    "after_epoch": ("after_train_epoch", "after_epoch", "on_epoch_end"),
    "before_predict": ("before_pred_epoch", "before_epoch", "on_epoch_begin"),
    "before_predict_step": ("before_pred_iter", "before_iter", "on_iter_begin"),
    "after_predict_step": ("after_pred_iter", "after_iter", "on_iter_end"),
    "after_predict": ("after_pred_epoch", "after_epoch", "on_epoch_end"),
    "after_run": ("after_run", "on_run_end"),
}
"""The point of Orca that is called at each point of Stoker; it calls the specific ones."""


class OwnerStep(Step):
    """The step of a run, defined by its `MainCallback`."""

    def __init__(self, owner: MainCallback, runner: TorchRunner) -> None:
        self._owner, self._runner = owner, runner
        self.__name__ = self.stands_for = type(owner).__name__
        if overridden(owner, MainCallback, ("on_iter_forward", "on_train_forward")):
            # its outputs need not be those that the criterion got
            self.owns = self.owns | {"forward"}  # type: ignore[misc]
        self.timers = MultiTimer()

    def train(self, run: Run) -> bool | None:
        """Run forward and backward, and adjust the rate if it changes per update."""
        runner, owner, engine = self._runner, self._owner, run.engine
        if engine.moves_batches:
            runner.batch = engine.place(runner.batch)
        with self.timers["fwd"]:
            owner.on_train_forward(runner)
            output = self._on_output(run, runner.result(owner, "train"))
        with self.timers["bwd"]:
            loss, runner.loss = runner.loss, shared_loss(run, runner.loss)
            owner.on_iter_backward(runner)
            runner.loss = output.loss = loss
        if engine.lr_step == "step":
            owner.on_lr_adjust(runner)
        return None

    def adjust_lr(self, engine: Engine, run: Run) -> None:
        """Adjust the learning rate after an epoch, with the last ``batch_idx`` set."""
        assert run.feeder is not None
        self._runner.batch_idx = run.feeder.position.batches - 1
        self._owner.on_lr_adjust(self._runner)
        self._runner.drop()

    def val_forward(self, engine: Engine, batch: Any) -> Output:
        """Run one validation batch."""
        self._runner.batch = batch
        with self.timers["eval_fwd"]:
            self._owner.on_val_forward(self._runner)
        return self._runner.result(self._owner, "val")

    def predict(self, engine: Engine, batch: Any) -> Any:
        """Run one prediction batch."""
        self._runner.batch = batch
        with self.timers["pred_fwd"]:
            self._owner.on_pred_forward(self._runner)
        return as_tensors(self._runner.result(self._owner, "pred").outputs)


def as_tensors(outputs: Any) -> Any:
    """Return what a forward has set as a tree of tensors; it may hold arrays."""
    if isinstance(outputs, Mapping):
        return {key: as_tensors(value) for key, value in outputs.items()}
    if isinstance(outputs, tuple | list):
        return type(outputs)([as_tensors(value) for value in outputs])
    return torch.from_numpy(outputs) if isinstance(outputs, np.ndarray) else outputs


def mean_seconds(timers: MultiTimer) -> dict[str, float]:
    """Return the mean seconds of each action of a profile: ``mean_fwd_s`` and so on."""
    return {f"mean_{name}_s": timer.mean for name, timer in timers if timer.count}


def shared_loss(run: Run, loss: Tensor) -> Tensor:
    """Return the loss scaled so that averaged gradients are those of all samples."""
    parts = run.engine.parallel_model.data_ranks
    if parts == 1:
        return loss
    size, expected = run.sizes[0], run.expected
    if size and getattr(run.engine.given_criterion, "reduction", None) == "sum":
        return loss * parts
    return loss if size == expected else loss * (size / expected)


def adapted(callback: Callback, runner: TorchRunner, name: str) -> Adapter:
    """Call a callback at the points that it overrides."""
    hook, skipped = Adapter(callback, name), _methods_of_2_1(callback)
    if skipped:
        _log.warning(
            f"{type(callback).__name__}.{skipped[0]} is for Orca 2.1 and is not called since 2.2: "
            "override after_train_epoch(runner) and read runner.epoch_stats"
        )
    for point, names in POINTS.items():
        own = [one for one in overridden(callback, Callback, names) if one not in skipped]
        if own:
            in_fit_alone = point in ("before_run", "after_run")
            hook.place(own[0], point, _call(getattr(callback, own[0]), runner, in_fit_alone))
    return hook


def _methods_of_2_1(callback: Callback) -> list[str]:
    """Return the methods that take an epoch or a batch instead of the runner."""
    gone = [f"on_{what}_{end}" for what in ("train", "batch") for end in ("begin", "end")]
    changed = [f"on_epoch_{end}" for end in ("begin", "end")]
    return [name for name in gone if hasattr(callback, name)] + [
        name for name in changed if "epoch" in signature(getattr(callback, name)).parameters
    ]


def _call(method: Any, runner: TorchRunner, in_fit_alone: bool) -> Any:
    if in_fit_alone:
        return lambda run: method(runner) if run.task == "fit" else None
    return lambda run: method(runner)


class RunnerHook(Hook):
    """Update the runner before the callbacks, and compute the stats of an epoch."""

    priority = Priority.NORMAL - 1
    same_on_all_ranks = True

    def __init__(
        self, runner: TorchRunner, step: OwnerStep, metrics: Mapping[str, Any], *, profile: bool
    ) -> None:
        self.name = "TorchRunner"
        self._runner, self._timers, self._profile = runner, step.timers, profile
        self._metrics = metrics
        self.rows: list[Stats] = []
        self._samples = 0
        self._last: tuple[Any, float] = (0.0, 0.0)  # the loss of the last batch, and its weight
        self._val_samples = 0.0

    def attach(self, run: Run) -> None:
        """Attach the run to the runner."""
        self._runner.run = run

    def before_epoch(self, run: Run) -> None:
        """Discard the stats of the last epoch."""
        self._runner.epoch_stats, self._samples = Stats(), run.samples
        self._runner.finished = run.current_epoch - 1
        self._timers.reset()
        self._timers.start("train_epoch")

    def after_train_epoch(self, run: Run) -> None:
        """Stop the clock of training."""
        self._timers.stop("train_epoch")

    def before_step(self, run: Run) -> None:
        """Begin an iteration."""
        assert run.feeder is not None
        self._runner.take(run.batches[0], run.feeder.position.batches - 1)

    before_predict_step = before_step

    def after_step(self, run: Run) -> None:
        """Record the loss, which is read only at the end of the epoch."""
        self._last = self._runner.loss.detach(), run.sizes[-1]

    def before_val(self, run: Run) -> None:
        """Begin a validation."""
        self._val_samples = 0
        if run.task == "evaluate":
            self._timers.reset()
        self._timers.start("validation")

    def before_val_step(self, run: Run) -> None:
        """Begin a validation batch."""
        self.before_step(run)
        self._val_samples += run.sizes[0]

    def after_val(self, run: Run) -> None:
        """Count the samples over all processes."""
        self._val_samples = int(dist.all_reduce_sum(self._val_samples)[0])
        run.metrics[f"{run.val_name}/num_samples"] = self._val_samples
        self._timers.stop("validation")

    def after_epoch(self, run: Run) -> None:
        """Compute the stats of the epoch."""
        assert run.feeder is not None
        self._runner.finished = None
        count = int(dist.all_reduce_max(run.feeder.position.batches)[0])
        row = Stats(epoch=run.current_epoch, batch_count=count)
        row |= {"num_samples": run.samples - self._samples}
        row |= Stats.of_epoch(run.metrics, self._curves())
        total, weight = dist.all_reduce_sum(float(self._last[0]) * self._last[1], self._last[1])
        row["last_train_loss"] = total / weight if weight else math.nan
        row |= self._profiled()
        self.rows = [r for r in self.rows if r["epoch"] != row["epoch"]] + [row]
        self._runner.epoch_stats = row
        shown = {n: float(v) if isinstance(v, Tensor) else v for n, v in plain(row).items()}
        _log.info(f"Finished training epoch {row['epoch']}, stats averaged over workers: {shown}")

    def evaluation(self, results: Mapping[str, float]) -> Stats:
        """Return the results of an evaluation."""
        return Stats(Stats.of_evaluation(results, self._curves()) | self._profiled())

    def _curves(self) -> dict[str, Any]:
        found = {n: m.value for n, m in self._metrics.items() if isinstance(m, MetricOfRun)}
        return {name: v for name, v in found.items() if isinstance(v, tuple | list | dict)}

    def _profiled(self) -> dict[str, Any]:
        return {"profile": mean_seconds(self._timers)} if self._profile else {}

    def state_dict(self) -> dict[str, Any]:
        """Return the stats so far and the stored plain values."""
        storable = (int, float, str, bool, Tensor)
        kept = {key: v for key, v in self._runner.pocket.items() if isinstance(v, storable)}
        last = [float(self._last[0]), self._last[1]]
        rows = [plain(row) for row in self.rows]
        return {"rows": rows, "samples": self._samples, "last": last, "pocket": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the stats and the stored values."""
        self.rows, self._samples = [Stats(row) for row in state["rows"]], state["samples"]
        self._last = state["last"][0], state["last"][1]
        self._runner.pocket.update(state["pocket"])


class DropHook(Hook):
    """Clear the iteration of the runner after all callbacks."""

    priority = Priority.NORMAL + 1
    same_on_all_ranks = True

    def __init__(self, runner: TorchRunner) -> None:
        self.name = "TorchRunner, afterwards"
        self._runner = runner

    def after_step(self, run: Run) -> None:
        """End the iteration, even after a failure."""
        self._runner.drop()

    after_val_step = after_predict_step = on_exception = after_step
