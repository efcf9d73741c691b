"""`Trainer`: the loop."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from stoker import hooks as stock
from stoker.data import Feed
from stoker.data.feed import LastWindow, Loaders, count_of, take, val_feeds_of
from stoker.engine import Engine, Schedule
from stoker.engine.check import check_trainable
from stoker.events import History
from stoker.every import Every
from stoker.folder import RunFolder
from stoker.hooks.dispatch import HookList
from stoker.hooks.hook import Hook
from stoker.interrupt import stop_on_interrupt
from stoker.log import get_logger
from stoker.run import Run, Task
from stoker.seed import seed_all, undisturbed
from stoker.step import Step, as_output, as_step, owner_name
from stoker.tree import concatenate, map_tensors
from stoker.types import Batch, Output

_log = get_logger()

_IDLE_EPOCHS = 100


class Trainer:
    """Runs an engine over data and fires hook points; `stoker.hooks.Hook` shows their order.

        trainer = Trainer(Engine(model, optimizer, criterion))
        history = trainer.fit(train_loader, val_loader, epochs=3)
        scores  = trainer.evaluate(val_loader)
        outputs = trainer.predict(test_loader)

    Args:
        engine: the model and what trains it.
        hooks: what acts at points of the run. None brings `stoker.hooks.default()`, an empty
            list brings nothing.
        step: what one update means: a `Step`, or a function ``(engine, batch) -> loss``.
        schedule: the order of the micro-batches in a step.
        accumulate: how many batches of the loader make one step.
        last_window: what becomes of a last window with fewer batches: "flush" makes a smaller
            step of it, "drop" leaves it out.
        run_dir: the folder of the run. One that holds a run already is left alone, and the new
            run goes beside it.
        seed: seeds all random numbers when training begins; the model exists before that, so seed
            its initialisation yourself.
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
        run_dir: str | Path | None = None,
        seed: int | None = None,
    ) -> None:
        if not isinstance(engine, Engine):
            raise TypeError(
                f"engine is a {type(engine).__name__}, expected Engine(model, optimizer, …)"
            )
        self.engine = engine
        self.step = _owner(step, schedule)
        self.accumulate = accumulate
        self.last_window = last_window
        self.seed = seed
        self.run = Run(engine, RunFolder(run_dir) if run_dir is not None else None)
        self.history = History()
        self.hooks = HookList(stock.default() if hooks is None else hooks, self.run)
        self._validated_at = (-1, monotonic())
        self._attached = self._busy = self._dev_run = False

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
    ) -> History:
        """Train until ``epochs`` or ``max_steps`` are finished, counted from the run's beginning.

        Args:
            train_loader: an iterable of batches, with or without a length.
            val_loader: one for validation, or several by name.
            epochs: passes over the data.
            max_steps: updates; the run may end within an epoch.
            validate_every: "2ep", "500st", "10min" or None for never; also at the end.
            limit_train_batches: so many batches of each epoch, or that share of them as a float.
            limit_val_batches: the same for each validation loader.
            overfit_batches: train and validate on these first batches alone, to see that the
                model can learn at all.
            fast_dev_run: one batch (or so many) of everything, to see that it runs. Nothing is
                written, by this fit and by what follows until the next, and weights, counters and
                random numbers are afterwards as before.
        """
        if overfit_batches is not None:
            train_loader = take(train_loader, overfit_batches)
            val_loader = train_loader if val_loader is not None else None
        if fast_dev_run:
            limit_train_batches = limit_val_batches = int(fast_dev_run)
            epochs, max_steps = self.run.epoch + 1, None
        self._dev_run = bool(fast_dev_run)
        feed = Feed(
            train_loader, self.accumulate, last_window=self.last_window, limit=limit_train_batches
        )
        val_feeds = val_feeds_of(val_loader, limit_val_batches)
        every = Every.of(validate_every) if validate_every is not None else None
        run = self.run
        run.max_epochs, run.max_steps = count_of("epochs", epochs), count_of("max_steps", max_steps)
        run.steps_per_epoch = feed.steps
        run.val_names = tuple(val_feeds)
        self._check_fit()
        trial = self._trial() if fast_dev_run else nullcontext(self.history)
        with trial as history, self._running("fit") as hooks, self._training(hooks):
            idle = 0
            while not run.done:
                before = run.step
                self._train_epoch(feed, val_feeds, every)
                idle = idle + 1 if run.step == before else 0
                if idle == _IDLE_EPOCHS:  # max_steps alone would never be reached
                    run.stop(f"{idle} epochs in a row went by without one update")
        return history

    def _train_epoch(self, feed: Feed, val_feeds: dict[str, Feed], every: Every | None) -> None:
        run, fire, calls, train = self.run, self.run.fire, self.run.calls, self.step.train
        by_step = every if every is not None and every.unit != "ep" else None
        run.begin_epoch(feed)
        fire("before_epoch")
        for window in feed:
            run.begin_step(window)
            run.events.step = run.step + 1  # what this step puts is put under its number
            if calls["before_step"]:
                fire("before_step")
            run.updated = train(run) is not False
            run.count_step()
            if calls["after_step"]:
                fire("after_step")
            if (by_step or run.wishes) and self._validation_due(every):
                self._validate(val_feeds)
            if run.leaves_epoch:
                break
            run.end_step()
        whole = run.end_epoch()
        if whole and self.engine.lr_step == "epoch":
            self.step.adjust_lr(self.engine, run)
        fire("after_train_epoch")
        if self._validation_due_after_epoch(every, whole):
            self._validate(val_feeds)
        fire("after_epoch")
        run.wishes.clear()
        self.history.append({"epoch": run.epoch_in_hand, "step": run.step, **run.metrics})

    def _validate(self, feeds: dict[str, Feed]) -> dict[str, float]:
        run, fire, engine = self.run, self.run.fire, self.engine
        of_these = tuple(f"{name}/" for name in feeds)
        run.metrics = {n: value for n, value in run.metrics.items() if not n.startswith(of_these)}
        generators = [g for feed in feeds.values() for g in feed.generators()]
        val_forward = engine.precision.cast(self.step.val_forward)
        with (
            run.set_aside(),
            engine.mode(training=False),
            torch.no_grad(),
            undisturbed(*generators),
        ):
            for run.val_name, run.feed in feeds.items():
                fire("before_val")
                for window in run.feed:
                    run.begin_step(window)
                    fire("before_val_step")
                    output = val_forward(engine, engine.place(window[0]))
                    run.add_output(_judged(self.step, output))
                    fire("after_val_step")
                    run.end_step()
                fire("after_val")
        self._validated_at = (run.step, monotonic())
        return {name: v for name, v in run.metrics.items() if name.startswith(of_these)}

    # Looking at a model

    def evaluate(
        self, loader: Loaders, *, limit_batches: int | float | None = None
    ) -> dict[str, float]:
        """Results over one loader, or over several by name: ``{"val/loss": …}``.

        Weights, random numbers and the modes of modules are afterwards as before.
        """
        feeds = val_feeds_of(loader, limit_batches)
        self.run.val_names = tuple(feeds)
        with self._running("evaluate"):
            return self._validate(feeds)

    def predict(self, data: Any) -> Any:
        """What the model returns, on the CPU.

        A tensor, a tuple of tensors or a dict is one batch of inputs. Anything else is a loader:
        its batches are predicted in order, targets left out, and the outputs joined.
        """
        one_batch = isinstance(data, Tensor | tuple | Mapping)
        batches = [(data, None) if isinstance(data, tuple) else data] if one_batch else data
        feed = Feed(batches, name="data")
        run, engine = self.run, self.engine
        predict = engine.precision.cast(self.step.predict)
        gathered = []
        with (
            self._running("predict"),
            engine.mode(training=False),
            torch.no_grad(),
            undisturbed(*feed.generators()),
        ):
            run.feed, fire = feed, run.fire
            fire("before_predict")
            for window in feed:
                run.begin_step(window)
                fire("before_predict_step")
                outputs = predict(engine, engine.place(window[0]))
                run.add_output(Output(outputs=outputs))
                fire("after_predict_step")
                gathered.append(map_tensors(lambda tensor: tensor.cpu(), run.outputs[-1].outputs))
                run.end_step()
            fire("after_predict")
        return gathered[0] if one_batch else concatenate(gathered)

    def stop(self, reason: str = "stopped by the caller") -> None:
        """End a fit in progress after the step in hand; may be called from another thread."""
        self.run.stop(reason)

    def explain(self) -> str:
        """The loop with every hook in firing order."""
        step = f"step: {owner_name(self.step)}, schedule: {type(self.step.schedule).__name__}"
        return f"{step}\n{self.hooks.picture()}"

    # Around the loop

    @contextmanager
    def _trial(self) -> Iterator[History]:
        """A fit that leaves no trace: afterwards everything is as before; its own history."""
        run, engine, history = self.run, self.engine, self.history
        kept = deepcopy(engine.state_dict())
        hook_states = [(hook, deepcopy(hook.state_dict())) for hook in self.hooks]
        events = run.events.state_dict()
        counters = run.step, run.epoch, run.samples, run.metrics, self._validated_at
        self.history = History()
        try:
            with undisturbed():
                yield self.history
        finally:
            engine.load_state_dict(kept)
            for hook, state in hook_states:
                hook.load_state_dict(state)
            run.events.load_state_dict(events)
            run.step, run.epoch, run.samples, run.metrics, self._validated_at = counters
            self.history = history

    @contextmanager
    def _running(self, task: Task) -> Iterator[HookList]:
        """The outermost points, and the state they may rely on; the hooks that take part."""
        run = self.run
        hooks = self.hooks.without_writers() if self._dev_run else self.hooks
        if self._busy:
            raise RuntimeError(
                f"{task}() was called within a {run.task} in progress: a hook asks for an "
                "evaluation with run.ask('evaluate')"
            )
        run.begin(task)
        run.fire, run.calls = hooks.fire, hooks.calls
        self._busy = True
        try:
            with run.events, _ending(hooks, "after_run"):
                first = not self._attached
                if first:
                    self.hooks.fire("attach")
                    self._attached = True
                run.fire("before_run")
                if first:
                    _log.debug(f"hooks in order: {self.hooks.order()}")
                yield hooks
        finally:
            self._busy = False
            if task == "fit":
                self.history.stop_reason = run.stop_reason

    @contextmanager
    def _training(self, hooks: HookList) -> Iterator[None]:
        """Training mode, Ctrl-C, the seed, and the points around training."""
        run = self.run
        if run.limit_reached:
            _log.info(f"nothing left to do: {run.where()}")
            yield
            return
        with (
            self.engine.mode(training=True),
            stop_on_interrupt(run.stop),
            _ending(hooks, "after_train"),
        ):
            if run.step == 0 and self.seed is not None:
                seed_all(self.seed)
            self._validated_at = (self._validated_at[0], monotonic())
            run.fire("before_train")
            yield

    def _check_fit(self) -> None:
        """What cannot be trained is refused before data is touched."""
        run, engine = self.run, self.engine
        if run.max_epochs is None and run.max_steps is None:
            raise ValueError("fit() would never end: give epochs= or max_steps=")
        if not engine.optimizers:
            raise ValueError("fit() needs an optimizer: Engine(model, optimizer, criterion)")
        check_trainable(engine)

    def _validation_due(self, every: Every | None) -> bool:
        """After a step: because of its number, the clock, or because someone asked."""
        run = self.run
        if run.asked("evaluate"):
            return bool(run.val_names)
        if every is None or not run.updated or run.step == self._validated_at[0]:
            return False
        if not run.val_names:
            return False
        return every.at_step(run.step) or (
            every.unit == "min" and every.at_seconds(monotonic() - self._validated_at[1])
        )

    def _validation_due_after_epoch(self, every: Every | None, whole: bool) -> bool:
        """After an epoch, when asked, and once at the end; never twice at one step."""
        run = self.run
        if run.asked("evaluate"):
            return bool(run.val_names)
        if every is None or not run.val_names or run.step == self._validated_at[0]:
            return False
        return run.limit_reached or (whole and every.at_epoch(run.epoch))


@contextmanager
def _ending(hooks: HookList, point: str) -> Iterator[None]:
    """Fires ``point`` however the block ends; a failure is told to on_exception first, once."""
    run = hooks.run
    try:
        yield
    except BaseException as error:
        if run.error is None:
            run.error = error
            hooks.fire_all("on_exception")
        raise
    finally:
        run.drop_step()
        hooks.fire_all(point)


def _owner(step: Any, schedule: Schedule | None) -> Step:
    """The one owner of the step, with its schedule."""
    owner = as_step(step)
    if schedule is not None:
        if "train" in owner.owns:
            raise ValueError(
                f"{owner_name(owner)}.train and {type(schedule).__name__} both order the "
                "micro-batches of a step: leave one out"
            )
        if not hasattr(schedule, "run"):
            raise TypeError(f"schedule is {schedule!r}, expected one such as PlainSchedule()")
        owner.schedule = schedule
    return owner


def _judged(step: Step, result: Any) -> Output:
    """What a validation forward returned, as an `Output` that has something to judge."""
    output = result if isinstance(result, Output) else as_output(step, result, "val_forward")
    if output.loss is None and output.outputs is None:
        raise ValueError(
            f"{owner_name(step)}.val_forward returned an Output with neither 'loss' nor 'outputs': "
            "set Output(loss=…) or Output(outputs=…)"
        )
    return output
