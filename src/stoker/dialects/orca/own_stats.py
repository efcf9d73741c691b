"""`OwnStats`: the stats of each worker, for ``reduce_results=False``."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from stoker import Hook, Priority, Run
from stoker.core import dist
from stoker.core.types import Output
from stoker.dialects.orca.metrics import MetricOfRun
from stoker.dialects.orca.stats import Stats
from stoker.dialects.orca.torch_runner import TorchRunner


class OwnStats(Hook):
    """Collect the stats of the data of this process.

    Args:
        runner: The runner of the process.
        metrics: The metrics of the run by name.
        synced: Whether losses and metrics are those of all processes (``sync_stats``).
    """

    priority = Priority.NORMAL + 1  # after the callbacks, which may add to the stats
    same_on_all_ranks = True

    def __init__(self, runner: TorchRunner, metrics: Mapping[str, Any], *, synced: bool) -> None:
        self.name = "TorchRunner, of each worker"
        self._runner, self._metrics, self._synced = runner, metrics, synced
        self._train: list[tuple[Tensor | None, float]] = []
        self._val: list[tuple[Tensor | None, float]] = []
        self.rows: list[Stats] = []

    def before_epoch(self, run: Run) -> None:
        """Begin an epoch."""
        self._train, self._val = [], []

    def after_step(self, run: Run) -> None:
        """Record the loss, which is read only at the end of the epoch."""
        self._train += _losses(run.outputs)

    def before_val(self, run: Run) -> None:
        """Begin a validation."""
        self._val = []

    def after_val_step(self, run: Run) -> None:
        """Record the loss of a validation batch."""
        self._val += _losses(run.outputs)

    def after_epoch(self, run: Run) -> None:
        """Compute the stats of the epoch."""
        row = Stats(self._runner.epoch_stats)
        loss, samples = _mean(self._train)
        batches = sum(1 for _, weight in self._train if weight)
        row |= {"batch_count": batches, "num_samples": int(samples)}
        if not self._synced:
            last = [value for value, weight in self._train if weight]
            row |= {"train_loss": loss, "last_train_loss": _number(last[-1]) if last else math.nan}
        if self._val:
            own = Stats.of_epoch(self._own_results(), {})
            row |= own if not self._synced else {"val_num_samples": own["val_num_samples"]}
        self.rows.append(row)

    def evaluation(self, results: Stats) -> Stats:
        """Return the results of an evaluation for the data of this process."""
        own = Stats.of_evaluation(self._own_results(), {})
        return Stats(results | (own if not self._synced else {"num_samples": own["num_samples"]}))

    def _own_results(self) -> dict[str, float]:
        loss, samples = _mean(self._val)
        found = {"val/num_samples": int(samples)} | ({} if math.isnan(loss) else {"val/loss": loss})
        for name, metric in self._metrics.items() if samples else ():
            value = metric.of_process.compute() if isinstance(metric, MetricOfRun) else None
            if isinstance(value, float | int) or (isinstance(value, Tensor) and value.numel() == 1):
                found[f"val/{name}"] = float(value)
        return found

    def of_all_workers(self, own: Any) -> list[Any]:
        """Return what each process has of its own, on all of them."""
        return dist.all_gather_object(own)


def _losses(outputs: Sequence[Output]) -> list[tuple[Tensor | None, float]]:
    return [
        (output.loss.detach() if output.loss is not None else None, float(output.weight or 0))
        for output in outputs
    ]


def _number(value: Tensor | None) -> float:
    return math.nan if value is None else float(value)


def _mean(losses: Sequence[tuple[Tensor | None, float]]) -> tuple[float, float]:
    """Return the mean loss over samples, and their number."""
    samples = sum(weight for _, weight in losses)
    total = sum(_number(value) * weight for value, weight in losses if weight)
    return (total / samples if samples else math.nan), samples
