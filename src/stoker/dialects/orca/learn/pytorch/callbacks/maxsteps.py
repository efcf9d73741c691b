"""`MaxstepsCallback`: limit the number of updates."""

from stoker.data.feeder import count_of
from stoker.dialects.orca.learn.pytorch.callbacks.base import Callback
from stoker.dialects.orca.learn.pytorch.torch_runner import TorchRunner


class MaxstepsCallback(Callback):
    """Stop the run after ``max_step`` updates in total."""

    def __init__(self, max_step: int) -> None:
        self.max_step = count_of("max_step", max_step)

    def before_run(self, runner: TorchRunner) -> None:
        """Set the limit."""
        runner.run.max_epochs, runner.run.max_steps = None, self.max_step
