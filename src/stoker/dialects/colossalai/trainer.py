"""`Trainer`: the interface of Colossal-AI's trainer on Stoker's loop."""

from collections.abc import Iterable, Mapping
from typing import Any

from stoker import Hook, Run
from stoker import Trainer as Core
from stoker import hooks as stock
from stoker.dialects.adapter import with_names
from stoker.dialects.colossalai.checkpoint_hooks import LoadCheckpointHook, SaveCheckpointHook
from stoker.dialects.colossalai.engine import Engine
from stoker.dialects.colossalai.hooks import BaseHook
from stoker.dialects.colossalai.logging import get_dist_logger
from stoker.dialects.colossalai.registry import build_hooks
from stoker.dialects.colossalai.schedule import BaseSchedule, DialectStep, Seen, joined
from stoker.dialects.colossalai.utils import MultiTimer
from stoker.engine.checks import check_scheduler

HookList = Iterable[BaseHook | Mapping[str, Any]]
_FIRST, _LAST = -(10**9), 10**9


class Trainer:
    """Train, test and predict with an engine.

    The timer measures "Train-step", "Train-epoch", "Test-step" and "Test-epoch". The order of hooks
    is logged. Hooks share `states`, which is cleared at the start of a fit or an evaluation:
    metrics are in ``states['metrics']['train']`` and ``states['metrics']['test']`` by name.
    ``hooks_cfg`` are the hooks of every fit and evaluation that has none of its own.
    """

    def __init__(
        self,
        engine: Engine,
        timer: MultiTimer | None = None,
        logger: Any = None,
        *,
        schedule: BaseSchedule | None = None,
        verbose: bool = False,
        hooks_cfg: HookList | None = None,
    ) -> None:
        if not isinstance(engine, Engine):
            raise TypeError(
                f"engine is a {type(engine).__name__}, expected what colossalai.initialize returned"
            )
        self.engine = engine
        self.schedule = schedule or engine.schedule
        kind = type(self.schedule)
        if kind.forward_backward_step is not BaseSchedule.forward_backward_step:
            raise TypeError(
                f"{kind.__name__} overrides forward_backward_step, which a Trainer never calls: "
                "pass a Step to stoker.Trainer, or call engine.execute_schedule in your own loop"
            )
        self._timer, self.timer = timer, timer or MultiTimer()
        self._logs_hooks = logger is not None or verbose
        self.logger = logger or get_dist_logger()
        self.states: dict[str, Any] = {}
        self.hooks: list[BaseHook] = []
        self.late, self.ignored_steps, self.returns_outputs = False, 0, True
        self._in_epoch, self._hooks_cfg = False, hooks_cfg
        self._core = Core(engine.core, [])

    run = property(lambda self: self._core.run, doc="The run, as Stoker's hooks see it.")
    max_epochs = property(lambda self: self.run.max_epochs, doc="The epochs of the fit.")
    max_steps = property(
        lambda self: self.run.max_steps, doc="The maximum number of updates, or None."
    )
    steps_per_epoch = property(lambda self: self.run.steps_per_epoch, doc="Updates in an epoch.")

    @property
    def cur_step(self) -> int:
        """The index of the current step, from 0."""
        return int(self.run.step) - self.late

    @property
    def cur_epoch(self) -> int:
        """The index of the current epoch, from 0; set it before a fit to start there."""
        run = self.run
        return int(run.current_epoch - 1 if self._in_epoch else run.epoch)

    @cur_epoch.setter
    def cur_epoch(self, epoch: int) -> None:
        self.run.epoch = epoch
        self.run.step = epoch * (self.run.steps_per_epoch or 0)

    def fit(
        self,
        train_dataloader: Iterable[Any],
        epochs: int | None = None,
        max_steps: int | None = None,
        test_dataloader: Iterable[Any] | None = None,
        test_interval: int = 1,
        hooks: HookList | None = None,
        display_progress: bool = False,
        return_output_label: bool = True,
        *,
        hooks_cfg: HookList | None = None,
        max_epochs: int | None = None,
    ) -> None:
        """Train until ``epochs`` or ``max_steps`` updates are finished.

        Test every ``test_interval`` epochs and after the last. Hooks may be dicts that describe
        them. ``hooks_cfg`` and ``max_epochs`` are older names of ``hooks`` and ``epochs``.
        """
        epochs = _one_of("epochs", epochs, "max_epochs", max_epochs)
        given = _one_of("hooks", hooks, "hooks_cfg", hooks_cfg)
        self._prepare(given, display_progress, return_output_label)
        core = self.engine.core  # an LRSchedulerHook replaces its scheduler
        core.lr_schedulers = check_scheduler(self.engine.lr_scheduler, core.optimizers)
        core.lr_step = "step"
        saves = [hook.folder for hook in self.hooks if isinstance(hook, SaveCheckpointHook)]
        loads = [hook for hook in self.hooks if isinstance(hook, LoadCheckpointHook)]
        resume = loads[0].resume(self, saves[0] if saves else None) if loads else "auto"
        self._core.fit(
            unwrap(train_dataloader),
            unwrap(test_dataloader),
            epochs=epochs,
            max_steps=max_steps,
            validate_every=f"{test_interval}ep",
            resume=resume,
        )

    def evaluate(
        self,
        test_dataloader: Iterable[Any],
        hooks: HookList | None = None,
        display_progress: bool = False,
        return_output_label: bool = True,
    ) -> None:
        """Test; hooks hold the results. Weights, buffers and modes do not change."""
        self._prepare(hooks, display_progress, return_output_label)
        self._core.evaluate(unwrap(test_dataloader))

    def predict(self, data: Any) -> Any:
        """Return the outputs of the model for a tensor, a list or tuple of tensors, or a dict."""
        core = Core(
            self.engine.core, [], step=DialectStep(self.schedule), schedule=self.schedule.core
        )
        return core.predict(tuple(data) if isinstance(data, list) else data)

    def metrics(self, mode: str) -> dict[str, Any]:
        """Return the metrics of "train" or "test" that hooks share."""
        found: dict[str, Any] = self.states.get("metrics", {}).get(mode, {})
        return found

    def seen(self, run: Run) -> Seen:
        """Return output, label and loss of the current step, joined over its batches."""
        outputs = run.outputs
        self.schedule.batch_size = sum([one.weight or 0.0 for one in outputs])
        if self.returns_outputs:
            return joined(outputs, sums=self.engine.core.loss_is_sum)
        return None, None, run.loss

    def _prepare(self, given: Any, display_progress: bool, returns_outputs: bool) -> None:
        """Create a run with these hooks that continues the counters of the last one."""
        previous = self.run
        self.hooks = sorted(self._built(given), key=lambda hook: hook.priority)
        self.states.clear()
        self.late, self.ignored_steps, self.returns_outputs = False, 0, returns_outputs
        self._core = Core(
            self.engine.core,
            [*self._natives(), stock.Progress() if display_progress else None],
            step=DialectStep(self.schedule),
            schedule=self.schedule.core,
            accumulate=self.engine.gradient_accumulation,
            last_window="drop",
        )
        for counter in ("step", "epoch", "current_epoch", "samples", "feeder"):
            setattr(self.run, counter, getattr(previous, counter))
        if self._logs_hooks and self.hooks:
            for hook in self.hooks:
                line = f"Using {type(hook).__name__} for training, priority = {hook.priority}"
                self.logger.info(line, ranks=[0])
            self.logger.info(
                "Lower value means higher priority for calling hook function", ranks=[0]
            )

    def _built(self, given: Any) -> list[BaseHook]:
        made = []
        given = self._hooks_cfg if given is None else given
        for index, hook in enumerate(given or ()):
            built = build_hooks(hook, self) if isinstance(hook, Mapping) else hook
            if not isinstance(built, BaseHook):
                raise TypeError(
                    f"hooks[{index}] is {built!r} of type {type(built).__name__}, expected a hook "
                    "such as LossHook() or dict(type='LossHook')"
                )
            made.append(built)
        return made

    def _natives(self) -> list[Hook]:
        """Return the Stoker hooks for the hooks of the script."""
        made: list[Hook] = []
        for hook, name in with_names(self.hooks):
            made += hook.natives(name, self)
        made.append(_States(self))
        if self._timer is not None or any(hook.timed for hook in self.hooks):
            made += _clock(self)
        if self.engine.gradient_handlers:
            handle = stock.Callback(
                name="gradient handlers", before_update=lambda run: self.engine.handle_gradient()
            )
            handle.same_on_all_ranks = True
            made.append(handle)
        return made


class _States(Hook):
    """Track the current epoch, and save the metrics of the epoch."""

    priority = _FIRST
    same_on_all_ranks = True

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def attach(self, run: Run) -> None:
        """Start a fit at a later epoch at the step of that epoch."""
        if run.epoch and not run.step:
            run.step = run.epoch * (run.steps_per_epoch or 0)

    def before_epoch(self, run: Run) -> None:
        self._trainer._in_epoch = True

    def after_epoch(self, run: Run) -> None:
        self._trainer._in_epoch = False

    def after_run(self, run: Run) -> None:
        self._trainer._in_epoch = self._trainer.late = False

    def state_dict(self) -> dict[str, Any]:
        metrics = self._trainer.metrics("train").items()
        return {name: metric.state_dict() for name, metric in metrics}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        metrics = self._trainer.metrics("train")
        for name in metrics.keys() & state.keys():
            metrics[name].load_state_dict(state[name])


def _clock(trainer: Trainer) -> list[Hook]:
    """Return hooks that start timers after all other hooks and stop them before any."""
    timer = trainer.timer

    def begin(name: str, *within: str) -> Any:
        def call(run: Run) -> None:
            for other in within:
                timer.reset(other)
            timer.start(name)

        return call

    def end_step(run: Run) -> None:
        kept = trainer.ignored_steps <= 0
        trainer.ignored_steps -= 1
        timer.stop("Train-step", keep_in_history=kept)

    begins = stock.Callback(
        name="timers begin",
        priority=_LAST,
        before_epoch=begin("Train-epoch", "Train-step"),
        before_step=begin("Train-step"),
        before_val=begin("Test-epoch", "Test-step"),
        before_val_step=begin("Test-step"),
    )
    ends = stock.Callback(
        name="timers end",
        priority=_FIRST,
        after_step=end_step,
        after_train_epoch=lambda run: timer.stop("Train-epoch", keep_in_history=True),
        after_val_step=lambda run: timer.stop("Test-step", keep_in_history=True),
        after_val=lambda run: timer.stop("Test-epoch", keep_in_history=True),
    )
    begins.same_on_all_ranks = ends.same_on_all_ranks = True
    return [begins, ends]


def _one_of(name: str, value: Any, older: str, older_value: Any) -> Any:
    if value is not None and older_value is not None:
        raise TypeError(f"{older} is an older name of {name}: pass only one of them")
    return older_value if value is None else value


def unwrap(loader: Any) -> Any:
    """Return the loader that was passed to `initialize`; Stoker shards it itself."""
    return getattr(loader, "of_windows", loader)
