"""Run Orca's `MainCallback` as a `Step` and its callbacks as hooks."""

import math
from time import perf_counter
from typing import Any

from torch import Tensor

from stoker import Engine, Hook, Output, Priority, Run, Step
from stoker.core import dist
from stoker.core.log import get_logger
from stoker.dialects.adapter import Adapter, overridden
from stoker.dialects.orca.callbacks import Callback, MainCallback
from stoker.dialects.orca.torch_runner import TorchRunner, renamed

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
        self.forward_s = self.backward_s = 0.0

    def train(self, run: Run) -> bool | None:
        """Run forward and backward, and adjust the rate if it changes per update."""
        runner, owner, engine = self._runner, self._owner, run.engine
        if engine.moves_batches:
            runner.batch = engine.place(runner.batch)
        began = perf_counter()
        owner.on_train_forward(runner)
        output = self._on_output(run, runner.result(owner, "train"))
        between = perf_counter()
        loss, runner.loss = runner.loss, shared_loss(run, runner.loss)
        owner.on_iter_backward(runner)
        runner.loss = output.loss = loss
        self.forward_s += between - began
        self.backward_s += perf_counter() - between
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
        self._owner.on_val_forward(self._runner)
        return self._runner.result(self._owner, "val")

    def predict(self, engine: Engine, batch: Any) -> Any:
        """Run one prediction batch."""
        self._runner.batch = batch
        self._owner.on_pred_forward(self._runner)
        return self._runner.result(self._owner, "pred").outputs


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
    hook = Adapter(callback, name)
    for point, names in POINTS.items():
        own = overridden(callback, Callback, names)
        if own:
            in_fit_alone = point in ("before_run", "after_run")
            hook.place(own[0], point, _call(getattr(callback, names[0]), runner, in_fit_alone))
    return hook


def _call(method: Any, runner: TorchRunner, in_fit_alone: bool) -> Any:
    if in_fit_alone:
        return lambda run: method(runner) if run.task == "fit" else None
    return lambda run: method(runner)


class RunnerHook(Hook):
    """Update the runner before the callbacks, and compute the stats of an epoch."""

    priority = Priority.NORMAL - 1
    same_on_all_ranks = True

    def __init__(self, runner: TorchRunner, step: OwnerStep, *, profile: bool) -> None:
        self.name = "TorchRunner"
        self._runner, self._step, self._profile = runner, step, profile
        self.rows: list[dict[str, Any]] = []
        self._samples = 0
        self._last: tuple[Any, float] = (0.0, 0.0)  # the loss of the last batch, and its weight
        self._began = self._val_samples = 0.0

    def attach(self, run: Run) -> None:
        """Attach the run to the runner."""
        self._runner.run = run

    def before_epoch(self, run: Run) -> None:
        """Discard the stats of the last epoch."""
        self._runner.epoch_stats, self._samples = {}, run.samples
        self._began, self._step.forward_s, self._step.backward_s = perf_counter(), 0.0, 0.0

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

    def before_val_step(self, run: Run) -> None:
        """Begin a validation batch."""
        self.before_step(run)
        self._val_samples += run.sizes[0]

    def after_val(self, run: Run) -> None:
        """Count the samples over all processes."""
        self._val_samples = int(dist.all_reduce_sum(self._val_samples)[0])
        run.metrics[f"{run.val_name}/num_samples"] = self._val_samples

    def after_epoch(self, run: Run) -> None:
        """Compute the stats of the epoch."""
        assert run.feeder is not None
        count = int(dist.all_reduce_max(run.feeder.position.batches)[0])
        row: dict[str, Any] = {
            "epoch": run.current_epoch,
            "batch_count": count,
            "num_samples": run.samples - self._samples,
            **renamed(run.metrics),
        }
        total, weight = dist.all_reduce_sum(float(self._last[0]) * self._last[1], self._last[1])
        row["last_train_loss"] = total / weight if weight else math.nan
        if self._profile:
            row["profile"] = {
                "mean_fwd_s": self._step.forward_s / max(1, count),
                "mean_bwd_s": self._step.backward_s / max(1, count),
                "mean_train_epoch_s": perf_counter() - self._began,
            }
        self.rows = [r for r in self.rows if r["epoch"] != row["epoch"]] + [row]
        self._runner.epoch_stats = row
        _log.info(f"Finished training epoch {row['epoch']}, stats averaged over workers: {row}")

    def state_dict(self) -> dict[str, Any]:
        """Return the stats so far and the stored plain values."""
        plain = (int, float, str, bool, Tensor)
        kept = {key: v for key, v in self._runner.pocket.items() if isinstance(v, plain)}
        last = [float(self._last[0]), self._last[1]]
        return {"rows": self.rows, "samples": self._samples, "last": last, "pocket": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the stats and the stored values."""
        self.rows, self._samples = list(state["rows"]), state["samples"]
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
