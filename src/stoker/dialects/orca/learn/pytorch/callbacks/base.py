"""`Callback`: code at the named points of an Orca run."""

from collections.abc import Sequence

from stoker import Hook
from stoker.dialects.orca.learn.pytorch.torch_runner import TorchRunner


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
        """The older spelling of ``before_run``."""

    def on_run_end(self, runner: TorchRunner) -> None:
        """The older spelling of ``after_run``."""

    def on_epoch_begin(self, runner: TorchRunner) -> None:
        """The older spelling of ``before_epoch``."""

    def on_epoch_end(self, runner: TorchRunner) -> None:
        """The older spelling of ``after_epoch``."""

    def on_iter_begin(self, runner: TorchRunner) -> None:
        """The older spelling of ``before_iter``."""

    def on_iter_end(self, runner: TorchRunner) -> None:
        """The older spelling of ``after_iter``."""

    def every_n_iter(self, runner: TorchRunner, n: int) -> bool:
        """Return whether a multiple of ``n`` updates is finished; False if ``n`` < 1."""
        return n > 0 and runner.global_step > 0 and runner.global_step % n == 0

    def every_n_epoch(self, runner: TorchRunner, n: int) -> bool:
        """Return whether a multiple of ``n`` epochs is finished; False if ``n`` < 1."""
        return n > 0 and runner.epochs > 0 and runner.epochs % n == 0

    def hooks(self) -> Sequence[Hook]:
        """Return the Stoker hooks that implement this callback."""
        return ()
