"""`EpochRecords`: with ``--json``, a record for each epoch of a training."""

from stoker.cli.output import emit
from stoker.core import dist
from stoker.hooks import Hook, Priority
from stoker.run import Run


class EpochRecords(Hook):
    """Print a record when an epoch and its validation have ended."""

    priority = Priority.REPORT
    observes = same_on_all_ranks = True

    def after_epoch(self, run: Run) -> None:
        """Print the counters and results."""
        if dist.is_main():
            emit(
                "epoch",
                run=run.dir,
                epoch=run.current_epoch,
                epochs=run.max_epochs,
                step=run.step,
                total_steps=run.total_steps,
                metrics=dict(run.metrics),
            )
