"""Callbacks at the named points of a run, and `MainCallback`, which owns the step."""

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from stoker import Hook, events, hooks
from stoker.data.feeder import count_of
from stoker.dialects.orca.torch_runner import TorchRunner
from stoker.dialects.script_step import accepts
from stoker.engine.batch import call_model, find_loss, target_error


class Callback:
    """Code at named points of a run, which takes the runner.

        before_run
          before_train_epoch
            before_train_iter  …the owner: forward, backward…  after_train_iter
            …the owner: on_lr_adjust…
            before_val_epoch   before_val_iter …forward… after_val_iter   after_val_epoch
          after_train_epoch                     validation results are visible
        after_run
        before_pred_epoch   before_pred_iter …forward… after_pred_iter   after_pred_epoch

    The points of a stage call the general one, ``before_epoch``, ``after_epoch``, ``before_iter``
    or ``after_iter``, and that calls the older spelling, ``on_epoch_begin`` and so on: whoever
    overrides the first without ``super()`` silences the others. A callback with ``state_dict`` and
    ``load_state_dict`` has its state saved with the run.
    """

    def before_run(self, runner: TorchRunner) -> None:
        """Run before a fit."""
        self.on_run_begin(runner)

    def after_run(self, runner: TorchRunner) -> None:
        """Run after a fit, even if it failed."""
        self.on_run_end(runner)

    def before_epoch(self, runner: TorchRunner) -> None:
        """Run before a pass over training, validation or prediction data."""
        self.on_epoch_begin(runner)

    def after_epoch(self, runner: TorchRunner) -> None:
        """Run after a pass; after that over training data and its validation."""
        self.on_epoch_end(runner)

    def before_iter(self, runner: TorchRunner) -> None:
        """Run before a batch."""
        self.on_iter_begin(runner)

    def after_iter(self, runner: TorchRunner) -> None:
        """Run after a batch."""
        self.on_iter_end(runner)

    def before_train_epoch(self, runner: TorchRunner) -> None:
        """Run before a pass over the data of a stage."""
        self.before_epoch(runner)

    def after_train_epoch(self, runner: TorchRunner) -> None:
        """Run after it; for training after its validation, with ``runner.epoch_stats``."""
        self.after_epoch(runner)

    def before_train_iter(self, runner: TorchRunner) -> None:
        """Run before a batch of a stage."""
        self.before_iter(runner)

    def after_train_iter(self, runner: TorchRunner) -> None:
        """Run after a batch: the update is counted, a prediction is in ``runner.output``."""
        self.after_iter(runner)

    before_val_epoch = before_pred_epoch = before_train_epoch
    after_val_epoch = after_pred_epoch = after_train_epoch
    before_val_iter = before_pred_iter = before_train_iter
    after_val_iter = after_pred_iter = after_train_iter

    def on_run_begin(self, runner: TorchRunner) -> None:
        """The older spelling of ``before_run``, as ``on_run_end`` is that of ``after_run``."""

    on_run_end = on_epoch_begin = on_epoch_end = on_iter_begin = on_iter_end = on_run_begin

    def every_n_iter(self, runner: TorchRunner, n: int) -> bool:
        """Return whether a multiple of ``n`` updates is finished; False if ``n`` < 1."""
        return n > 0 and runner.global_step > 0 and runner.global_step % n == 0

    def every_n_epoch(self, runner: TorchRunner, n: int) -> bool:
        """Return whether a multiple of ``n`` epochs is finished; False if ``n`` < 1."""
        return n > 0 and runner.epochs > 0 and runner.epochs % n == 0

    def hooks(self) -> Sequence[Hook]:
        """Return the Stoker hooks that implement this callback."""
        return ()


class MainCallback(Callback):
    """The definition of an update. A run has exactly one; override the parts that differ.

    A forward sets ``runner.output`` and ``runner.loss``, and ``runner.target`` where metrics are to
    see another target than the last part of the batch.
    """

    def on_iter_forward(self, runner: TorchRunner) -> None:
        """Run model and loss on a batch ``(*features, target)`` of training or validation.

        Without a criterion the model gets what it takes of the batch, and may return its own loss.
        """
        batch, criterion = runner.batch, runner.criterion
        if criterion is None or not isinstance(batch, tuple | list):
            runner.output = call_model(runner.engine, taken(runner, batch))
            loss, _ = find_loss(runner.output)
            if loss is not None:
                runner.loss = loss
            return
        *features, runner.target = batch
        output = runner.output = call_model(runner.engine, features)
        outputs = output if isinstance(output, tuple | list) else (output,)
        targets = runner.target if isinstance(runner.target, tuple | list) else (runner.target,)
        try:
            runner.loss = criterion(*outputs, *targets)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            fault = target_error(runner.engine.given_criterion, output, runner.target)
            if fault is not None:
                error.add_note(f"the loss got {fault}")
            raise

    def on_train_forward(self, runner: TorchRunner) -> None:
        """Run the forward pass of training."""
        self.on_iter_forward(runner)

    def on_val_forward(self, runner: TorchRunner) -> None:
        """Run the forward pass of validation."""
        self.on_iter_forward(runner)

    def on_pred_forward(self, runner: TorchRunner) -> None:
        """Run the forward pass of prediction on all parts of the batch that the model takes."""
        runner.output = call_model(runner.engine, taken(runner, runner.batch))

    def on_iter_backward(self, runner: TorchRunner) -> None:
        """Reset the gradients, run backward, and update."""
        engine = runner.engine
        engine.zero_grad()
        engine.backward(runner.loss)
        engine.update()

    def on_lr_adjust(self, runner: TorchRunner) -> Any:
        """Step the scheduler, if there is one, after each epoch or update."""
        if runner.scheduler is not None:
            runner.engine.adjust_lr()


def taken(runner: TorchRunner, batch: Any) -> Any:
    """Return the model's inputs: all parts of a batch, or those before the target."""
    several = isinstance(batch, tuple | list)
    return batch[:-1] if several and not accepts(runner.engine.model.forward, *batch) else batch


MainCallBack = MainCallback
"""An alternative spelling."""


def make_only_mainCallback(  # noqa: N802
    callbacks: Iterable[Any] | None,
) -> tuple[MainCallback, list[Callback]]:
    """Return the owner of the step, and a new list of callbacks that starts with it."""
    given = list(callbacks or ())
    for one in given:
        if not isinstance(one, Callback):
            kind = (
                f"the class {one.__name__}" if isinstance(one, type) else f"a {type(one).__name__}"
            )
            raise TypeError(f"callbacks hold {kind}, expected a Callback object")
    owners = [one for one in given if isinstance(one, MainCallback)]
    if len(owners) > 1:
        names = ", ".join(type(one).__name__ for one in owners)
        raise ValueError(
            f"{len(owners)} owners of the step were given ({names}), expected exactly one "
            "MainCallback: put what they do into one"
        )
    owner = owners[0] if owners else MainCallback()
    return owner, [owner, *(one for one in given if one is not owner)]


class MaxstepsCallback(Callback):
    """Stop the run after ``max_step`` updates in total."""

    def __init__(self, max_step: int) -> None:
        self.max_step = count_of("max_step", max_step)

    def before_run(self, runner: TorchRunner) -> None:
        """Set the limit."""
        runner.run.max_epochs, runner.run.max_steps = None, self.max_step


class TqdmCallback(Callback):
    """Show Stoker's progress bar on rank 0."""

    def hooks(self) -> Sequence[Hook]:
        """Return the progress hook."""
        return (hooks.Progress(),)


class TensorBoardCallback(Callback):
    """Write to ``log_dir`` every "epoch", "batch" or number of updates."""

    def __init__(self, log_dir: str | Path, freq: str | int = "epoch") -> None:
        is_count = isinstance(freq, int) and not isinstance(freq, bool) and freq > 0
        if not is_count and freq not in ("epoch", "batch"):
            raise ValueError(f"freq is 'epoch', 'batch' or a number of updates, got {freq!r}")
        self.log_dir = Path(log_dir)
        self.freq = {"epoch": "1ep", "batch": "1st"}.get(str(freq), freq)

    def hooks(self) -> Sequence[Hook]:
        """Return the writing hook."""
        return (hooks.LR(), hooks.Write(events.TensorBoard(self.log_dir), every=self.freq))


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
