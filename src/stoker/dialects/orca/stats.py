"""The results of an estimator under the names of Orca."""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from stoker.core.errors import did_you_mean

__all__ = ["Stats", "Timers", "process_stats"]

_SAMPLES = ("num_samples", "val_num_samples")


class Stats(dict[str, Any]):
    """Results by name. A name is found with or without ``val_``, in any case.

    Orca calls one result ``Accuracy`` in an evaluation and ``val_accuracy`` in a fit; both find it,
    and so does ``val_Accuracy``.
    """

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
        samples = {"num_samples": named.pop("num_samples")}
        return cls({**as_tensors(named), **curves, **loss, **samples})

    @classmethod
    def of_epoch(cls, results: Mapping[str, float], curves: Mapping[str, Any]) -> "Stats":
        """Return the results of an epoch: ``train_loss``, ``val_loss``, and ``val_<metric>``."""
        named = {name.replace("/", "_"): v for name, v in results.items() if name[:4] != "val/"}
        found = cls.of_evaluation(
            {"val/num_samples": 0, **{n: v for n, v in results.items() if n[:4] == "val/"}}, curves
        )
        if "val/num_samples" not in results:
            return cls(named)
        return cls(named | {_with_prefix(name): value for name, value in found.items()})


def _bare(name: str) -> str:
    return name.lower().removeprefix("val_")


def _with_prefix(name: str) -> str:
    return name if name.startswith("val_") else f"val_{name.lower()}"


def as_tensors(results: Mapping[str, float]) -> dict[str, Tensor]:
    """Return metrics as the tensors that Orca's metrics return."""
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in results.items()}


def process_stats(worker_stats: Sequence[Mapping[str, Any]]) -> Stats:
    """Return the stats of several workers as one: means weighted by samples, and total samples."""
    first = worker_stats[0]
    found = Stats({name: sum(s[name] for s in worker_stats) for name in _SAMPLES if name in first})
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


class Timers:
    """Mean seconds of named actions."""

    def __init__(self) -> None:
        self._totals: dict[str, tuple[float, int]] = {}
        self.clear()

    def clear(self) -> None:
        """Forget all times."""
        self._totals.clear()
        self._began = perf_counter()

    def add(self, name: str, seconds: float | None = None) -> None:
        """Add the seconds of an action, by default those since `clear` or the last such action."""
        now = perf_counter()
        total, count = self._totals.get(name, (0.0, 0))
        self._totals[name] = total + (now - self._began if seconds is None else seconds), count + 1
        if seconds is None:
            self._began = now

    def means(self) -> dict[str, float]:
        """Return the mean seconds of each action: ``mean_fwd_s`` and so on."""
        return {f"mean_{name}_s": total / n for name, (total, n) in self._totals.items()}
