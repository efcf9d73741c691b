"""Which checkpoints may go."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Best:
    """Keep the best by a result: ``Best("val/loss", "min")``.

    Args:
        metric: a name in ``info["metrics"]`` of the saves; those without it do not take part.
        mode: whether the smallest or the largest is best.
        k: how many.
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
        """The result in an info, turned so that smaller is better."""
        value = (info.get("metrics") or {}).get(self.metric)
        if value is None or not math.isfinite(value):
            return None
        return float(value) if self.mode == "min" else -float(value)


@dataclass(frozen=True, slots=True)
class Retention:
    """The rule of a folder: the newest ``keep``, each ``keep_every``-th step, and the best."""

    keep: int | None
    keep_every: int | None
    best: Best | None

    def __post_init__(self) -> None:
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
        """The steps that may go, oldest first.

        Args:
            steps: all there are.
            saved: the one just saved, which stays.
            info_of: the info of a step if it verifies, else None. One that does not verify counts
                for nothing, and goes only when as many whole ones as asked for are newer.
        """
        if self.keep is None:
            return []
        newest_first = sorted(steps, reverse=True)
        stay, whole = {saved}, 0
        for step in newest_first:
            if whole == self.keep:
                break
            stay.add(step)
            whole += info_of(step) is not None
        stay |= {step for step in newest_first if self.keep_every and step % self.keep_every == 0}
        stay |= self._best(newest_first, info_of)
        return [step for step in reversed(newest_first) if step not in stay]

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
