"""The built-in hooks, and `Checkpointer`, which saves and loads by name."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import nn

from stoker import Run, load_weights
from stoker import hooks as stock
from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.names import step_in_name
from stoker.core import dist
from stoker.core.errors import did_you_mean
from stoker.core.timers import Timer
from stoker.dialects.libai.adapter import POINTS
from stoker.dialects.libai.evaluation import flatten_results_dict
from stoker.dialects.libai.events import EventWriter, Foreign
from stoker.dialects.libai.trainer import HookBase
from stoker.events import Writer
from stoker.hooks.base.monitor import Mode, Monitor
from stoker.resume.lookup import find_checkpoint
from stoker.rundir import files
from stoker.storage import LocalStorage, write_atomic
from stoker.storage.local import replace_link

_log = logging.getLogger("libai.hooks")


class CallbackHook(HookBase):
    """A hook of plain functions, which take the trainer."""

    def __init__(self, **functions: Callable[[Any], None] | None) -> None:
        for point, function in functions.items():
            if point not in POINTS:
                near = did_you_mean(point, POINTS)
                raise TypeError(f"there is no point {point!r}{near} (points: {', '.join(POINTS)})")
            if function is not None:
                setattr(self, point, lambda call=function: call(self.trainer))


class IterationTimer(HookBase):
    """Report ``time``, the seconds per iteration including data, and the total at the end."""

    def __init__(self, warmup_iter: int = 3) -> None:
        self._warmup = warmup_iter

    def before_train(self) -> None:
        """Start timing."""
        self._start, self._step, self._total = self.trainer.iter, Timer(), Timer()
        self._total.start()

    def before_step(self) -> None:
        """Start timing an iteration."""
        self._step.start()

    def after_step(self) -> None:
        """Stop timing an iteration; the first ones are warmup."""
        seconds = self._step.stop(keep=False) + self.trainer.data_time
        if self.trainer.iter - self._start >= self._warmup:
            self.trainer.storage.put_scalar("time", seconds)
            self._step.add(seconds)

    def after_train(self) -> None:
        """Log the total time."""
        step, total = self._step, timedelta(seconds=int(self._total.stop()))
        spent = timedelta(seconds=int(step.total))
        if n := step.count:
            _log.info(f"Overall training speed: {n} iterations in {spent} ({step.mean:.4f} s / it)")
        others = max(timedelta(), total - spent)
        _log.info(f"Total training time: {total} ({others} on hooks)")


class LRScheduler(HookBase):
    """Report ``lr`` and step the scheduler; by default those of the trainer."""

    def __init__(self, optimizer: Any = None, scheduler: Any = None) -> None:
        self._optimizer, self._scheduler = optimizer, scheduler

    @property
    def scheduler(self) -> Any:
        """Return the scheduler."""
        return self._scheduler if self._scheduler is not None else self.trainer.lr_scheduler

    def after_step(self) -> None:
        """Report and step, except after a skipped update."""
        trainer = self.trainer
        groups = (trainer.optimizer if self._optimizer is None else self._optimizer).param_groups
        largest = max(groups, key=lambda group: len(group["params"]))
        trainer.storage.put_scalar("lr", largest["lr"], smoothing_hint=False)
        if trainer.run.updated:
            self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler."""
        return dict(self.scheduler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the scheduler."""
        self.scheduler.load_state_dict(state)


class Checkpointer:
    """Save a model and other stateful objects under a name in a folder."""

    def __init__(
        self,
        model: nn.Module,
        save_dir: str | Path = "",
        *,
        save_to_disk: bool = True,
        **checkpointables: Any,
    ) -> None:
        self.model, self.save_dir = model, Path(save_dir)
        self.save_to_disk = save_to_disk and str(save_dir) != ""
        self.checkpointables = checkpointables

    def save(self, name: str, **kwargs: Any) -> None:
        """Save under this name with additional plain values, and mark it as the last checkpoint."""
        self.write(name, **kwargs)
        self.tag_last_checkpoint(name)

    def write(self, name: str, **kwargs: Any) -> None:
        """Save under this name without marking it as the last checkpoint."""
        if not self.save_to_disk:
            return
        states = {key: one.state_dict() for key, one in self.checkpointables.items()}
        state = {"model": self.model.state_dict(), **states, "extra": kwargs}
        with Checkpoints(self.save_dir / name, keep=1) as checkpoints:
            checkpoints.save(kwargs.get("iteration", -1) + 1, state, wait=True)

    def load(self, path: str | Path | None, checkpointables: Sequence[str] | None = None) -> Any:
        """Load matching values, log the others, and return the additional values.

        The path is a checkpoint by this class or of a run, or a ``.safetensors`` file; "" is none.
        """
        if path is None or str(path) == "":
            _log.info("no checkpoint to load: the model is as it was made")
            return {}
        load_weights(self.model, path)
        if Path(path).is_file():
            return {}
        found = find_checkpoint(path, None)
        assert found is not None
        state = Checkpoints(found.parent).load(found).shared
        if "run" in state:  # a resumed run restores the rest itself
            return {"iteration": state["run"]["step"] - 1}
        for key in self.checkpointables if checkpointables is None else checkpointables:
            if key in state:
                self.checkpointables[key].load_state_dict(state[key])
        return state["extra"]

    def resume_or_load(self, path: str | Path | None, *, resume: bool = True) -> Any:
        """Load the last checkpoint to resume from, or else the weights of ``path``."""
        if resume and self.has_checkpoint():
            return self.load(self.get_checkpoint_file())
        return self.load(path, checkpointables=[])

    def has_checkpoint(self) -> bool:
        """Return whether there is a last checkpoint."""
        return (self.save_dir / "last_checkpoint").is_file()

    def get_checkpoint_file(self) -> str:
        """Return the path of the last checkpoint, or "" if there is none."""
        if not self.has_checkpoint():
            return ""
        return str(self.save_dir / (self.save_dir / "last_checkpoint").read_text().strip())

    def tag_last_checkpoint(self, last_filename_basename: str) -> None:
        """Mark a checkpoint as the last."""
        if self.save_to_disk and dist.is_main():
            write_atomic(self.save_dir / "last_checkpoint", last_filename_basename)


def get_missing_parameters_message(keys: Iterable[str]) -> str:
    """Return a message about weights of a model that are not in a checkpoint."""
    return f"not found in the checkpoint: {', '.join(keys)}"


def get_unexpected_parameters_message(keys: Iterable[str]) -> str:
    """Return a message about weights in a checkpoint that the model does not have."""
    return f"not used by the model: {', '.join(keys)}"


class PeriodicCheckpointer(stock.Checkpoint):
    """Save a checkpoint every ``period`` iterations and at the end.

    The names ``model_0000009`` and ``model_final`` beside it lead to the checkpoints, and
    ``last_checkpoint`` names the newest.

    ``max_to_keep`` of those by period stay, all if None; ``max_iter`` is the run's unless given.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        period: int,
        max_iter: int | None = None,
        max_to_keep: int | None = None,
        file_prefix: str = "model",
    ) -> None:
        if max_to_keep is not None and max_to_keep < 1:
            raise ValueError(f"max_to_keep must be at least 1, or None for all, got {max_to_keep}")
        super().__init__(period, keep=None, folder=checkpointer.save_dir / files.CHECKPOINTS)
        self._checkpointer, self._period, self._max_iter = checkpointer, int(period), max_iter
        self._to_keep, self._prefix = max_to_keep, file_prefix

    def folder_for(self, run: Run) -> Path | None:
        """Return the folder, None if the checkpointer saves nothing."""
        self._max_iter = self._max_iter or run.max_steps
        return super().folder_for(run) if self._checkpointer.save_to_disk else None

    def saved(self, path: Path) -> None:
        """Link the checkpoint's names, and delete the oldest checkpoints."""
        self._remove_old(path.parent)
        step, names = step_in_name(path.name) or 0, []
        if step and step % self._period == 0:
            names.append(f"{self._prefix}_{step - 1:07d}")
        if step == self._max_iter:
            names.append(f"{self._prefix}_final")
        folder = path.parent.parent
        for name in names:
            replace_link(folder / name, path)
        for old in folder.glob(f"{self._prefix}_*"):
            if old.is_symlink() and not old.exists():
                old.unlink()
        if names:
            self._checkpointer.tag_last_checkpoint(names[-1])

    def _remove_old(self, folder: Path) -> None:
        """Keep the newest periodic checkpoints and the newest of all."""
        paths = Checkpoints(folder).list()
        steps = [step_in_name(path.name) or 0 for path in paths]
        periodic = [step for step in steps if step and step % self._period == 0]
        stay = {steps[-1], *periodic[-(self._to_keep or len(periodic)) :]}
        for step, path in zip(steps, paths, strict=True):
            if step not in stay:
                LocalStorage(folder).delete(path.name)


class EvalHook(HookBase):
    """Evaluate every ``eval_period`` iterations and after the last.

    Results, whose names may be nested, reach the storage, ``run.metrics`` and writers at once.
    """

    def __init__(self, eval_period: int, eval_function: Callable[[], Any]) -> None:
        self._period, self._function = eval_period, eval_function

    def after_step(self) -> None:
        """Evaluate when it is due."""
        if not is_due(self.trainer, self._period):
            return
        results = self._function()
        if not results:
            return
        if not isinstance(results, Mapping):
            raise TypeError(f"eval_function returned a {type(results).__name__}, expected a dict")
        for name, value in flatten_results_dict(results).items():
            try:
                self.trainer.run.record(name, float(value))
            except (TypeError, ValueError) as error:
                message = f"eval_function returned {name!r}: {value!r}, expected a number"
                raise ValueError(message) from error
        self.trainer.flush()


def is_due(trainer: Any, period: int) -> bool:
    """Return whether a period is due at an iteration, or it is the last."""
    done = trainer.iter + 1
    return bool(done == trainer.max_iter or (period > 0 and done % period == 0))


class BestCheckpointer(HookBase):
    """Save ``model_best`` when a result is the best so far; place it after `EvalHook`."""

    def __init__(
        self,
        eval_period: int,
        checkpointer: Checkpointer,
        val_metric: str,
        mode: Mode = "max",
        file_prefix: str = "model_best",
    ) -> None:
        self._monitor = Monitor(val_metric, mode)
        self._period, self._checkpointer, self._name = eval_period, checkpointer, file_prefix

    def after_step(self) -> None:
        """Check the result of this iteration, if there is one."""
        if not is_due(self.trainer, self._period):
            return
        results, name = self.trainer.run.metrics, self._monitor.name
        if name not in results:
            there = f"(results: {', '.join(results) or 'none'})"
            _log.warning(
                f"no evaluation has returned {name!r}{did_you_mean(name, results)} {there}"
            )
        elif self._monitor.improves(value := results[name]):
            self._checkpointer.write(self._name, iteration=self.trainer.iter, best=value)

    def state_dict(self) -> dict[str, Any]:
        """Return the best result so far."""
        return self._monitor.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the best result so far."""
        self._monitor.load_state_dict(state)


class PeriodicWriter(stock.Write):
    """Write every ``period`` iterations, at the end, and when there are results."""

    def __init__(self, writers: Iterable[Writer | EventWriter], period: int = 20) -> None:
        given = list(writers)
        found = (Foreign(one) if isinstance(one, EventWriter) else one for one in given)
        super().__init__(*found, every=period)
        self.name = "PeriodicWriter"
        self.windows = {one.window_size for one in given if hasattr(one, "window_size")}

    def after_step(self, run: Run) -> None:
        """Write when it is due, and the last iteration before hooks report the end."""
        if run.step == run.max_steps:
            self.act(run)
        else:
            super().after_step(run)

    def after_epoch(self, run: Run) -> None:
        """Do nothing, because there are no epochs."""
