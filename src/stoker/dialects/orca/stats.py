"""The results of an estimator under the names of Orca."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stoker import Hook, Priority, Run
from stoker.core.errors import did_you_mean
from stoker.core.tree import as_floats
from stoker.core.types import Output
from stoker.dialects.orca.metrics import MetricOfRun
from stoker.dialects.orca.torch_runner import TorchRunner


class Stats(dict[str, Any]):
    """Results by name, which are found with or without ``val_``, in upper or lower case."""

    def __missing__(self, key: str) -> Any:
        found = [value for name, value in self.items() if _bare(name) == _bare(key)]
        if len(found) != 1:
            raise KeyError(f"there is no result {key!r}{did_you_mean(key, self)}")
        return found[0]

    @classmethod
    def of_evaluation(cls, results: Mapping[str, float], curves: Mapping[str, Any]) -> "Stats":
        """Return the results of an evaluation: ``val_loss``, and metrics under their names."""
        named = {name.partition("/")[2]: value for name, value in results.items()}
        loss = {"val_loss": named.pop("loss")} if "loss" in named else {}
        samples = {"num_samples": named.pop("num_samples", 0)}
        tensors = {name: torch.tensor(v, dtype=torch.float64) for name, v in named.items()}
        return cls({**tensors, **curves, **loss, **samples})

    @classmethod
    def of_epoch(cls, results: Mapping[str, float], curves: Mapping[str, Any]) -> "Stats":
        """Return the results of an epoch: ``train_loss``, ``val_loss``, and ``val_<metric>``."""
        of_val = {name: v for name, v in results.items() if name.startswith("val/")}
        found = cls({n.replace("/", "_"): v for n, v in results.items() if n not in of_val})
        validated = cls.of_evaluation(of_val, curves) if of_val else {}
        return cls(found | {_with_prefix(name): value for name, value in validated.items()})


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stats of an epoch without curves, as they are saved in a checkpoint."""
    return {name: value for name, value in row.items() if not isinstance(value, tuple | list)}


def _bare(name: str) -> str:
    return name.lower().removeprefix("val_")


def _with_prefix(name: str) -> str:
    return name if name.startswith("val_") else f"val_{name.lower()}"


def process_stats(worker_stats: Sequence[Mapping[str, Any]]) -> Stats:
    """Return the stats of several workers as one: means weighted by samples, and total samples."""
    first = worker_stats[0]
    found = Stats(
        {name: sum(s[name] for s in worker_stats) for name in first if name.endswith("num_samples")}
    )
    for name in first:
        if name not in found:
            samples = "val_num_samples" if name.startswith("val_") else "num_samples"
            weights = [s.get(samples, s.get("num_samples", 1)) for s in worker_stats]
            found[name] = _mean([s[name] for s in worker_stats], weights)
    return found


def _mean(values: Sequence[Any], weights: Sequence[float]) -> Any:
    first = values[0]
    if isinstance(first, Mapping):  # of a profile
        return {key: _mean([v[key] for v in values], [1] * len(values)) for key in first}
    if isinstance(first, int | float | Tensor):
        return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
    return first


class OwnStats(Hook):
    """Collect the stats of this process, with the losses and metrics of all if ``synced``."""

    priority = Priority.NORMAL + 1  # after the callbacks, which may add to the stats
    same_on_all_ranks = True

    def __init__(self, runner: TorchRunner, metrics: Mapping[str, Any], *, synced: bool) -> None:
        self.name = "TorchRunner, of each worker"
        self._runner, self._metrics, self._synced = runner, metrics, synced
        self._train: list[tuple[Any, float]] = []  # losses, which are read later, and samples
        self._val: list[tuple[Any, float]] = []
        self.rows: list[Stats] = []

    def before_epoch(self, run: Run) -> None:
        """Begin an epoch."""
        self._train, self._val = [], []

    def after_step(self, run: Run) -> None:
        """Record the loss of a batch."""
        self._train += _losses(run.outputs)

    def before_val(self, run: Run) -> None:
        """Begin a validation."""
        self._val = []

    def after_val_step(self, run: Run) -> None:
        """Record the loss of a validation batch."""
        self._val += _losses(run.outputs)

    def after_epoch(self, run: Run) -> None:
        """Compute the stats of the epoch."""
        row, samples = Stats(self._runner.epoch_stats), sum(size for _, size in self._train)
        row |= {"batch_count": len(self._train), "num_samples": int(samples)}
        if not self._synced and self._train:
            row |= {"train_loss": _mean_loss(self._train)}
            row |= {"last_train_loss": float(self._train[-1][0])}
        if self._val:
            own = Stats.of_epoch(self._own_results(), {})
            row |= {"val_num_samples": own["val_num_samples"]} if self._synced else own
        self.rows = [r for r in self.rows if r["epoch"] != row["epoch"]] + [row]

    def state_dict(self) -> dict[str, Any]:
        """Return the stats so far, and the losses of the current epoch."""
        losses = as_floats([loss for loss, _ in self._train])
        sizes = [size for _, size in self._train]
        return {"rows": [plain(row) for row in self.rows], "losses": losses, "sizes": sizes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the stats and the losses."""
        self.rows = [Stats(row) for row in state["rows"]]
        self._train = list(zip(state["losses"], state["sizes"], strict=True))

    def evaluation(self, results: Stats) -> Stats:
        """Return the results of an evaluation for the data of this process."""
        own = Stats.of_evaluation(self._own_results(), {})
        return Stats(results | ({"num_samples": own["num_samples"]} if self._synced else own))

    def _own_results(self) -> dict[str, float]:
        found = {"val/num_samples": float(sum(size for _, size in self._val))}
        if self._val and self._val[0][0] is not None:
            found["val/loss"] = _mean_loss(self._val)
        for name, metric in self._metrics.items() if self._val else ():
            value = metric.of_process.compute() if isinstance(metric, MetricOfRun) else None
            if isinstance(value, float) or (isinstance(value, Tensor) and value.numel() == 1):
                found[f"val/{name}"] = float(value)
        return found


def _losses(outputs: Sequence[Output]) -> list[tuple[Any, float]]:
    """Return losses and samples; a padding batch has none."""
    found = [(o.loss.detach() if o.loss is not None else None, o.weight) for o in outputs]
    return [(loss, float(size)) for loss, size in found if size]


def _mean_loss(losses: Sequence[tuple[Any, float]]) -> float:
    samples = sum(size for _, size in losses)
    return sum(float(loss) * size for loss, size in losses) / samples if samples else math.nan
