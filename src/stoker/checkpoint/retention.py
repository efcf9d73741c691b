"""Retention: which checkpoints are kept, and which are removed."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from stoker.checkpoint.format.manifest import metrics_in
from stoker.core.errors import check_number


@dataclass(frozen=True, slots=True)
class Best:
    """Keep the best checkpoints by a metric: ``Best("val/loss", "min")``.

    Args:
        metric: a name in ``info["metrics"]`` of the saves; those without it are not considered.
        mode: whether the smallest ("min") or the largest ("max") value is best.
        k: how many to keep.
    """

    metric: str
    mode: Literal["min", "max"]
    k: int = 1

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', got '{self.mode}'")
        if self.k < 1:
            raise ValueError(f"k must be at least 1, got {self.k}")

    def value(self, info: dict[str, Any]) -> float | None:
        """Return the metric of an info, negated for "max", so that smaller is better."""
        value = metrics_in(info).get(self.metric)
        if value is None or not math.isfinite(value):
            return None
        return float(value) if self.mode == "min" else -float(value)


@dataclass(frozen=True, slots=True)
class Retention:
    """Keep the newest ``keep``, those whose step is a multiple of ``keep_every``, and the best."""

    keep: int | None
    keep_every: int | None
    best: Best | None

    def __post_init__(self) -> None:
        for name, number in (("keep", self.keep), ("keep_every", self.keep_every)):
            if number is not None:
                check_number(name, number, integer=True)
        if self.keep is not None and self.keep < 1:
            raise ValueError(f"keep must be at least 1, or None for all, got {self.keep}")
        if self.keep_every is not None and self.keep_every < 1:
            raise ValueError(f"keep_every must be at least 1, got {self.keep_every}")

    def to_remove(
        self,
        steps: Iterable[int],
        saved: int,
        info_of: Callable[[int], dict[str, Any] | None],
    ) -> list[int]:
        """Return the steps to remove, oldest first.

        Args:
            steps: the steps of all checkpoints.
            saved: the step that was just saved, which is kept.
            info_of: returns the info of a step if its checkpoint verifies, else None. A damaged
                one does not count towards ``keep``, and is removed only when ``keep`` complete
                ones are newer.
        """
        if self.keep is None:
            return []
        newest_first = sorted(steps, reverse=True)
        kept, complete = {saved}, 0
        for step in newest_first:
            if complete == self.keep:
                break
            kept.add(step)
            complete += info_of(step) is not None
        kept |= {step for step in newest_first if self.keep_every and step % self.keep_every == 0}
        kept |= self._best(newest_first, info_of)
        return [step for step in reversed(newest_first) if step not in kept]

    def _best(self, steps: list[int], info_of: Callable[[int], dict[str, Any] | None]) -> set[int]:
        if self.best is None:
            return set()
        values = []
        for step in steps:
            info = info_of(step)
            value = None if info is None else self.best.value(info)
            if value is not None:
                values.append((value, step))
        return {step for _, step in sorted(values)[: self.best.k]}
