"""`Trainer`: the loop."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from stoker import hooks as stock
from stoker.core import dist
from stoker.core.errors import Preempted, check_number
from stoker.core.every import Every
from stoker.core.log import get_logger
from stoker.core.seed import preserve_rng
from stoker.core.tree import concatenate, map_tensors
from stoker.core.types import Batch, Output
from stoker.core.user_state import UserState
from stoker.data import BatchFeeder, DataShard
from stoker.data.feeder import LastWindow, Loaders, check_window, count_of, take, val_feeders_of
from stoker.engine import Engine, Schedule, schedule_for
from stoker.engine.checks import check_trainable
from stoker.events import History
from stoker.events.history import Explanation, Results
from stoker.hooks.base.agreement import with_agreement
from stoker.hooks.base.dispatch import HookList, check_hooks
from stoker.hooks.base.hook import Hook
from stoker.hooks.checkpoint import Checkpoint
from stoker.hooks.upload import upload_hooks
from stoker.resume.describe_run import identity_of, loaders_by_name
from stoker.resume.elastic import check_period
from stoker.resume.lookup import find_candidates, first_readable, load_checkpoint
from stoker.resume.manager import CheckpointManager, ValidationRecord
from stoker.resume.run_state import RunState
from stoker.resume.signals import handling
from stoker.resume.user_objects import saved_by_others, training_roots
from stoker.run import Run, RunControl, Task
from stoker.rundir.folder import RunFolder
from stoker.rundir.identity import Identity
from stoker.step import resolve_step, step_name
from stoker.storage import local_path

_log = get_logger()

_MOST_IDLE_EPOCHS = 100


class Trainer:
    """Runs an engine over data and fires hook points; `stoker.hooks.Hook` shows their order.

        trainer = Trainer(Engine(model, optimizer, criterion))
        history = trainer.fit(train_loader, val_loader, epochs=3)
        scores  = trainer.evaluate(val_loader)
        outputs = trainer.predict(test_loader)

    Args:
        engine: the model and what trains it.
        hooks: observers at points of the run. None means `stoker.hooks.default()`, an empty list
            means none.
        step: what one update means: a `Step`, or a function ``(engine, batch) -> loss``.
        schedule: the order of the micro-batches in a step.
        accumulate: how many batches of the loader make one step.
        last_window: what to do with a last accumulation window of fewer batches: "flush" makes a
            smaller step of it, "drop" leaves it out.
        run_dir: the folder of the run, or its URL in an object store. The same run is resumed in
            it; any other is left alone, and the new run gets a folder next to it.
        seed: seeds all random numbers when training begins; the model exists before that, so seed
            its initialisation yourself.
        grace: seconds allowed for the final checkpoint after SIGTERM or SIGUSR1.
        params: hyper-parameters to record with the run, besides those that it finds itself.
    """

    def __init__(
        self,
        engine: Engine,
        hooks: Iterable[Hook | None] | None = None,
        *,
        step: Any = None,
        schedule: Schedule | None = None,
        accumulate: int = 1,
        last_window: LastWindow = "flush",
        run_dir: str | Path | RunFolder | None = None,
        seed: int | None = None,
        grace: float = 30.0,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(engine, Engine):
            raise TypeError(
                f"engine is a {type(engine).__name__}, expected Engine(model, optimizer, …)"
            )
        self.engine = engine
        self.step = resolve_step(step, schedule_for(engine.layout, schedule))
        self.accumulate, self.last_window = accumulate, last_window
        if params is not None and not isinstance(params, Mapping):
            raise TypeError(f"params is a {type(params).__name__}, expected values by name")
        self.seed, self.params = seed, params
        check_window(accumulate, last_window)
        if seed is not None:
            check_number("seed", seed, integer=True)
        check_number("grace", grace)
        if not 0 < grace < inf:
            raise ValueError(f"grace must be a positive number of seconds, got {grace!r}")
        self.grace = grace
        self._folder = RunFolder.of(run_dir)
        self.run = Run(engine, self._folder)
        self._control = RunControl(self.run)
        self.history = History()
        given = check_hooks(stock.default() if hooks is None else hooks)
        given += upload_hooks(self._folder)
        self.hooks = HookList(with_agreement(given), self.run)
        self._last_validation = ValidationRecord(-1, dist.now(), 0.0)
        self._attached = self._busy = self._dev_run = False
        self._described: list[Any] = []  # the loaders of each fit
        self._val_loaders: dict[str, Any] = {}
        self._user_state = UserState(
            lambda: training_roots(self.run, self.hooks, self.step, self._val_loaders),
            lambda: saved_by_others(self.run, self.hooks, self.step),
        )
        self._manager: CheckpointManager
        self._loaded: Path | None = None

    # The loop

    def fit(
        self,
        train_loader: Iterable[Batch],
        val_loader: Loaders | None = None,
        *,
        epochs: int | None = None,
        max_steps: int | None = None,
        validate_every: int | str | Every | None = "1ep",
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        overfit_batches: int | float | None = None,
        fast_dev_run: bool | int = False,
        resume: str | Path = "auto",
    ) -> History:
        """Train until ``epochs`` or ``max_steps`` are finished, counted from the start of the run.

        Args:
            train_loader: an iterable of batches, with or without a length.
            val_loader: one for validation, or several by name.
            epochs: passes over the data.
            max_steps: updates; the run may end within an epoch.
            validate_every: "2ep", "500st", "10min" or None for never; also at the end.
            limit_train_batches: use this many batches of each epoch, or this share as a float.
            limit_val_batches: the same for each validation loader.
            overfit_batches: train and validate on these first batches alone, to check that the
                model can learn at all.
            fast_dev_run: one batch (or this many) of everything, to check that it runs. Nothing is
                written, by this fit and by what follows until the next one, and weights, counters
                and random numbers are restored afterwards.
            resume: "auto" resumes from the newest complete checkpoint of the run folder, if there
                is one; "must" fails if there is none; "never" starts from scratch, in a new
                folder; a path names the checkpoint that a run in a new folder starts from.
        """
        data = loaders_by_name(train_loader, val_loader)
        limits = (limit_train_batches, limit_val_batches, overfit_batches)
        if overfit_batches is not None:
            train_loader = take(train_loader, overfit_batches)
            val_loader = train_loader if val_loader is not None else None
        if fast_dev_run:
            if not isinstance(fast_dev_run, int):
                raise TypeError(f"fast_dev_run is {fast_dev_run!r}, expected True or a number")
            limit_train_batches = limit_val_batches = int(fast_dev_run)
            epochs, max_steps = self.run.epoch + 1, None
        self._dev_run = bool(fast_dev_run)
        shard, last, limit = self._data_shard, self.last_window, limit_train_batches
        feeder = BatchFeeder(
            train_loader, self.accumulate, last_window=last, limit=limit, shard=shard
        )
        val_feeders = val_feeders_of(val_loader, limit_val_batches, shard)
        self._val_loaders = {name: one.loader for name, one in val_feeders.items()}
        every = Every.of(validate_every) if validate_every is not None else None
        check_period("validate_every", every)
        run = self.run
        run.max_epochs, run.max_steps = count_of("epochs", epochs), count_of("max_steps", max_steps)
        run.steps_per_epoch, run.val_names = feeder.steps, tuple(val_feeders)
        self._check_fit()
        trial = self._trial(feeder) if fast_dev_run else nullcontext(self.history)
        with (
            trial as history,
            self._running("fit", resume, identity := self._identity(data, every, limits)) as hooks,
            self._training(hooks, feeder, resume, identity) as manager,
        ):
            idle = 0
            while manager.has_epoch:
                before = run.step
                self._train_epoch(hooks, feeder, val_feeders, every)
                idle = idle + 1 if run.step == before else 0
                if idle == _MOST_IDLE_EPOCHS:  # max_steps alone would never be reached
                    run.stop(f"{idle} epochs in a row passed without an update")
        if run.requests.preempted:
            raise Preempted
        return history

    def _train_epoch(
        self,
        hooks: HookList,
        feeder: BatchFeeder,
        val_feeders: dict[str, BatchFeeder],
        every: Every | None,
    ) -> None:
        run, control, manager = self.run, self._control, self._manager
        fire, calls, train = hooks.fire, hooks.calls, self.step.train
        by_step = every if every is not None and every.unit != "ep" else None
        control.begin_epoch(feeder)
        fire("before_epoch")
        if manager.begin_epoch():
            self._validate(hooks, val_feeders)
            manager.after_step(feeder)
        for window in manager.windows(feeder):
            control.begin_step(window)
            run.events.step = run.step + 1  # scalars of this step are stored under its number
            if calls["before_step"]:
                fire("before_step")
            control.count_step(updated=train(run) is not False)
            if calls["after_step"]:
                fire("after_step")
            if (by_step or run.requests.active) and self._validation_due(every):
                manager.before_val(feeder)
                self._validate(hooks, val_feeders)
            manager.after_step(feeder)
            if run.leaves_epoch:
                break
            control.end_step()
        manager.leave_epoch(feeder)
        complete = control.end_epoch()
        if complete and self.engine.lr_step == "epoch":
            self.step.adjust_lr(self.engine, run)
        fire("after_train_epoch")
        if self._validation_due(every, complete=complete):
            self._validate(hooks, val_feeders)
        fire("after_epoch")
        if run.requested("evaluate") and run.val_names and self._last_validation.step != run.step:
            self._validate(hooks, val_feeders)
        self.history.append({"epoch": run.current_epoch, "step": run.step, **run.metrics})
        manager.after_epoch(feeder)
        run.requests.active.clear()

    def _validate(self, hooks: HookList, feeders: dict[str, BatchFeeder]) -> dict[str, float]:
        run, control, fire, engine = self.run, self._control, hooks.fire, self.engine
        of_these = tuple(f"{name}/" for name in feeders)
        run.metrics = {n: value for n, value in run.metrics.items() if not n.startswith(of_these)}
        generators = [g for feeder in feeders.values() for g in feeder.generators()]
        val_forward = engine.precision.cast(self.step.val_forward)
        began = perf_counter()
        engine.parallel_model.sync_buffers()
        with (
            control.set_aside(),
            engine.mode(training=False),
            torch.no_grad(),
            preserve_rng(*generators),
        ):
            for run.val_name, run.feeder in feeders.items():
                fire("before_val")
                for window in run.feeder:
                    control.begin_step(window)
                    fire("before_val_step")
                    self.step.validate(run, val_forward)
                    fire("after_val_step")
                    control.end_step()
                fire("after_val")
        self._last_validation = ValidationRecord(run.step, dist.now(), perf_counter() - began)
        return {name: v for name, v in run.metrics.items() if name.startswith(of_these)}

    # Evaluation and prediction

    def evaluate(
        self, loader: Loaders, *, limit_batches: int | float | None = None
    ) -> dict[str, float]:
        """Return the results over one loader, or over several by name: ``{"val/loss": …}``.

        Weights, random numbers and the modes of modules do not change.
        """
        if loader is None:
            raise TypeError("loader is None, expected a DataLoader or another iterable of batches")
        feeders = val_feeders_of(loader, limit_batches, self._data_shard)
        self.run.val_names = tuple(feeders)
        with self._running("evaluate") as hooks:
            return Results(self._validate(hooks, feeders))

    def predict(self, data: Any) -> Any:
        """Return what the model returns, on the CPU, on every rank.

        A tensor, a tuple of tensors or a dict is one batch of inputs. Anything else is a loader:
        its batches are predicted in order, without targets, and the outputs are concatenated.
        """
        one_batch = isinstance(data, Tensor | tuple | Mapping)
        batches = [(data, None) if isinstance(data, tuple) else data] if one_batch else data
        shard = DataShard() if one_batch else self.engine.predict_shard
        feeder = BatchFeeder(batches, name="data", shard=shard)
        run, engine = self.run, self.engine
        predict = engine.precision.cast(self.step.predict)
        gathered = []
        engine.parallel_model.sync_buffers()
        with (
            self._running("predict") as hooks,
            self._control.set_aside(),
            engine.mode(training=False),
            torch.no_grad(),
            preserve_rng(*feeder.generators()),
        ):
            run.feeder, forward_only = feeder, self.step.schedule.forward_only
            observed = hooks.calls["before_predict_step"] or hooks.calls["after_predict_step"]
            hooks.fire("before_predict")
            for batch in (batch for window in feeder for batch in window):
                if observed:
                    outputs = self._predict_observed(hooks, batch, predict)
                else:
                    outputs = forward_only(engine, batch, predict)
                if outputs is not None and not feeder.padding:
                    gathered.append(
                        map_tensors(Tensor.cpu, outputs) if engine.moves_batches else outputs
                    )
            hooks.fire("after_predict")
            gathered = engine.parallel_model.gather_outputs(gathered, feeder.interleave)
        return gathered[0] if one_batch else concatenate(gathered)

    def _predict_observed(self, hooks: HookList, batch: Batch, predict: Any) -> Any:
        """Predict one batch as a step that hooks see and may change; None if others have it."""
        run = self.run
        self._control.begin_step([batch])
        hooks.fire("before_predict_step")
        outputs = self.step.schedule.forward_only(self.engine, run.batches[0], predict)
        if outputs is not None:
            run.add_output(Output(outputs=outputs))
        hooks.fire("after_predict_step")
        kept = run.outputs[-1].outputs if run.outputs else None
        self._control.end_step()
        return kept

    # Saving by hand; during a fit the Checkpoint hook decides

    def save(self, folder: str | Path, *, overwrite: bool = True) -> Path:
        """Save the complete state of the run as a checkpoint in ``folder``, between two fits.

        State of your own code without a ``state_dict`` is included if the run has a `Checkpoint`
        hook, because it is tracked from the beginning.
        """
        if self._busy:
            raise RuntimeError(
                "save() was called within a run: call run.request('save') in a hook instead"
            )
        path = local_path(folder, "folder")
        return self._state().save(path, self._last_validation.step, overwrite=overwrite)

    def load(self, path: str | Path) -> None:
        """Load a checkpoint, or the newest of a folder or run; the next fit resumes from it."""
        first_readable(find_candidates(path, None), self._load)

    def _load(self, path: Path) -> None:
        self._state().restore_trained(load_checkpoint(path, self.engine))
        self._loaded = path

    def stop(self, reason: str = "stopped by the caller") -> None:
        """End a fit in progress after the current step; may be called from another thread."""
        self.run.stop(reason)

    def explain(self) -> str:
        """Return the loop with every hook in firing order."""
        step = f"step: {step_name(self.step)}, schedule: {type(self.step.schedule).__name__}"
        return Explanation(f"{step}\n{self.hooks.picture()}")

    # Around the loop

    @contextmanager
    def _trial(self, feeder: BatchFeeder) -> Iterator[History]:
        """Run a fit with a history of its own, and restore everything afterwards."""
        history, last_validation = self.history, self._last_validation
        self.history = History()
        try:
            with self._state().unchanged(feeder):
                yield self.history
        finally:
            self.history, self._last_validation = history, last_validation

    @contextmanager
    def _running(
        self, task: Task, resume: str | Path = "auto", identity: Identity | None = None
    ) -> Iterator[HookList]:
        """Fire the outermost points; yield the hooks that take part."""
        run = self.run
        hooks = self.hooks.without_writers() if self._dev_run else self.hooks
        if self._busy:
            raise RuntimeError(
                f"{task}() was called within a {run.task} in progress: request an evaluation in a "
                "hook with run.request('evaluate')"
            )
        self._control.begin(task, resume, identity)
        self.step.begin(hooks)
        self._busy = True
        try:
            with (
                run.events,
                self.engine.parallel_model.observing(),
                hooks.ending("after_run", self._control.drop_step),
            ):
                first = not self._attached
                if first:
                    self.hooks.fire("attach")
                    self._attached = True
                hooks.fire("before_run")
                if first:
                    _log.debug(f"hooks in order: {self.hooks.order()}")
                yield hooks
        finally:
            self._busy = False
            if task == "fit":
                self.history.stop_reason = run.stop_reason

    @contextmanager
    def _training(
        self,
        hooks: HookList,
        feeder: BatchFeeder,
        resume: str | Path,
        identity: Identity | None,
    ) -> Iterator[CheckpointManager]:
        """Restore the run, handle signals, seed, and fire the points around training."""
        manager = CheckpointManager(
            self._state(), hooks, lambda: self._last_validation, self.grace, identity
        )
        self._manager = manager
        with manager:
            if not self._dev_run:
                manager.restore(feeder, resume, self._loaded if resume == "auto" else None)
                self._loaded = manager.later
            restored, last = manager.restored, self._last_validation
            validated_at = restored.validated_at if restored is not None else last.step
            self._last_validation = ValidationRecord(validated_at, dist.now(), last.seconds)
            if manager.nothing_left:
                manager.log_finished()
                if restored is None:
                    yield manager
                    return
            with (
                self.engine.mode(training=True),
                handling(manager.signals),
                hooks.ending("after_train", self._control.drop_step),
            ):
                if manager.starts:
                    self.engine.parallel_model.seed(self.seed)
                hooks.fire("before_train")
                manager.begin(feeder)
                yield manager

    def _data_shard(self) -> DataShard:
        """Return the shard of the data that this process reads now."""
        return self.engine.data_shard

    def _state(self) -> RunState:
        return RunState(
            self.run, self.hooks, self.step, self.history, self.accumulate, self._user_state
        )

    def _identity(
        self, data: Mapping[str, Any], every: Every | None, limits: tuple[Any, ...]
    ) -> Identity | None:
        """Describe the run that starts, or what a later fit adds; None if it saves nothing."""
        saves = (hook.folder_for(self.run) for hook in self.hooks if isinstance(hook, Checkpoint))
        if self._dev_run or not (self._folder or any(saves)):
            return None
        known = {id(one) for loaders in self._described for one in loaders.values()}
        self._described.append(data)
        data = {name: one for name, one in data.items() if id(one) not in known}
        names = ("limit_train_batches", "limit_val_batches", "overfit_batches")
        settings = {
            "accumulate": self.accumulate,
            "last_window": self.last_window,
            "validate_every": every and str(every),
            "seed": self.seed,
            **dict(zip(names, limits, strict=True)),
        }
        found = identity_of(self.run, self.step, self.hooks, data, settings, self.params)
        fit = len(self._described)
        return found if fit == 1 else found.of_later_fit(fit, settings)

    def _check_fit(self) -> None:
        """Reject what cannot be trained before data is touched."""
        run, engine = self.run, self.engine
        if run.max_epochs is None and run.max_steps is None:
            raise ValueError("fit() would never end: pass epochs= or max_steps=")
        if not engine.optimizers:
            raise ValueError("fit() needs an optimizer: Engine(model, optimizer, criterion)")
        check_trainable(engine)

    def _validation_due(self, every: Every | None, *, complete: bool | None = None) -> bool:
        """Return whether to validate now, but never twice at one step.

        After a step by its number, the clock or a request; after an epoch, where ``complete`` is
        given and says whether it was complete, by its number and at the end of the run.
        """
        run = self.run
        if not run.val_names or run.requested("evaluate"):
            return bool(run.val_names)
        if every is None or run.step == self._last_validation.step:
            return False
        if complete is not None:
            return run.limit_reached or (complete and every.at_epoch(run.epoch))
        since = dist.now() - self._last_validation.when
        return run.updated and (every.at_step(run.step) or every.at_seconds(since))
