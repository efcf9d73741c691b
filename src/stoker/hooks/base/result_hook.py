"""`ResultHook`: the base of hooks that act on each new value of one result."""

from abc import abstractmethod

from stoker.hooks.base.hook import Hook, Priority
from stoker.hooks.base.monitor import Monitor
from stoker.run import Run


class ResultHook(Hook):
    """Calls `on_result` with each new value of the result that ``monitor`` names.

    Validation results arrive after each validation, training results after each epoch.
    """

    priority = Priority.EVALUATE
    same_on_all_ranks = True

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.consumes = (monitor.name,)

    def before_train(self, run: Run) -> None:
        """Check that the run produces the monitored result."""
        self.monitor.check(run)

    def after_val(self, run: Run) -> None:
        """Handle a new validation result."""
        self._handle(run, at_epoch=False)

    def after_epoch(self, run: Run) -> None:
        """Handle a new training result."""
        self._handle(run, at_epoch=True)

    @abstractmethod
    def on_result(self, run: Run, value: float) -> None:
        """Act on a new value."""

    def _handle(self, run: Run, *, at_epoch: bool) -> None:
        value = self.monitor.fresh(run, at_epoch=at_epoch)
        if value is not None:
            self.on_result(run, value)
