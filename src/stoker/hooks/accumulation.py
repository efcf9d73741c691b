"""`AccumulationSchedule`: more batches per step in later epochs."""

from collections.abc import Mapping
from typing import Any

from stoker.hooks.base.hook import Hook, Priority
from stoker.run import Run


class AccumulationSchedule(Hook):
    """Change how many batches make one step at the beginning of given epochs.

        hooks.AccumulationSchedule({1: 1, 5: 2, 9: 4})    # 2 batches per step from epoch 5 on

    The number of steps of the run is then unknown to progress bars; give a learning-rate schedule
    its ``total_steps`` yourself.

    Args:
        batches: The number of batches by the first epoch that it applies to, from 1. Earlier
            epochs use what the trainer was given.
    """

    priority = Priority.ADJUST
    same_on_all_ranks = True

    def __init__(self, batches: Mapping[int, int]) -> None:
        numbers = [*batches, *batches.values()] if isinstance(batches, Mapping) else []
        if not numbers or any(type(number) is not int or number < 1 for number in numbers):
            raise ValueError(f"batches must be like {{1: 1, 5: 4}}, epochs from 1, got {batches!r}")
        self.batches = dict(sorted(batches.items()))

    def before_epoch(self, run: Run) -> None:
        """Set the number of batches per step of this epoch."""
        assert run.feeder is not None
        reached = [count for epoch, count in self.batches.items() if epoch <= run.current_epoch]
        run.feeder.accumulate = reached[-1] if reached else run.feeder.accumulate
        run.steps_per_epoch = None

    def info(self) -> dict[str, Any]:
        """Return the schedule."""
        return {"batches": {str(epoch): count for epoch, count in self.batches.items()}}
