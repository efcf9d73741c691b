"""Encoders and scalers of the columns of pandas shards."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker.dialects.orca.shards import SparkXShards

__all__ = ["MinMaxScaler", "StringIndexer"]


class StringIndexer:
    """Replace the values of columns by numbers from 1, in the order of their appearance."""

    def __init__(self, inputCol: str | Sequence[str]) -> None:  # noqa: N803
        self.columns = [inputCol] if isinstance(inputCol, str) else list(inputCol)
        self._numbers: dict[str, dict[Any, int]] = {}

    def fit_transform(self, shard: SparkXShards) -> SparkXShards:
        """Number the values of these shards and replace them."""
        for name in self.columns:
            values = shard[name].unique()
            self._numbers[name] = {value: n for n, value in enumerate(values, start=1)}
        return self.transform(shard)

    def transform(self, shard: SparkXShards) -> SparkXShards:
        """Replace values by their numbers; a value that was not there before becomes 0."""
        numbers = _fitted(self._numbers, self)

        def encode(frame: Any) -> Any:
            found = {c: frame[c].map(of).fillna(0).astype("int64") for c, of in numbers.items()}
            return frame.assign(**found)

        return shard.transform_shard(encode)


class MinMaxScaler:
    """Scale columns linearly to a range, and put them as one vector into another column."""

    def __init__(
        self,
        inputCol: str | Sequence[str],  # noqa: N803
        outputCol: str,  # noqa: N803
        min: float = 0.0,
        max: float = 1.0,
    ) -> None:
        self.columns = [inputCol] if isinstance(inputCol, str) else list(inputCol)
        self.output, self.range = outputCol, (min, max)
        self._bounds: list[tuple[float, float]] = []

    def fit_transform(self, shard: SparkXShards) -> SparkXShards:
        """Find the bounds of these shards and scale them."""
        rows = shard.concat_to_pdf()
        self._bounds = [(float(rows[c].min()), float(rows[c].max())) for c in self.columns]
        return self.transform(shard)

    def transform(self, shard: SparkXShards) -> SparkXShards:
        """Scale shards with the bounds that were found."""
        bounds, columns, output = _fitted(self._bounds, self), self.columns, self.output
        low, high = self.range

        def scale(frame: Any) -> Any:
            parts = [
                (frame[c].to_numpy() - a) / ((b - a) or 1.0) * (high - low) + low
                for c, (a, b) in zip(columns, bounds, strict=True)
            ]
            rows = np.stack(parts, axis=1).astype(np.float32)
            return frame.assign(**{output: list(rows)})

        return shard.transform_shard(scale)


def _fitted(found: Any, owner: Any) -> Any:
    if not found:
        raise RuntimeError(f"{type(owner).__name__}.transform() was called before fit_transform()")
    return found
