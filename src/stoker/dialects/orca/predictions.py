"""Predictions in the form of the data: arrays, shards, or a DataFrame with further columns."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from stoker.core.tree import map_tensors, tensors
from stoker.dialects.orca.loaders import Partitions, is_frame, is_ray, is_spark
from stoker.dialects.orca.shards import SparkXShards, XShards


def predicted(
    data: Any, prepared: Any, outputs: Any, output_cols: Sequence[str] | None = None
) -> Any:
    """Return the outputs of the model in the form of the data.

    Args:
        data: The data.
        prepared: What `sendable` returned for it.
        outputs: The outputs for all rows, in their order.
        output_cols: Names of the columns of a DataFrame.
    """
    if isinstance(data, XShards):
        return _shards(data, prepared, outputs)
    arrays = as_arrays(outputs)
    if isinstance(data, Mapping):
        return {"prediction": arrays}
    if not is_frame(data):
        return arrays
    if is_ray(data):
        rows = [{"prediction_result": row} for row in _rows(outputs)]
        return import_module("ray.data").from_items(rows)
    several = isinstance(outputs, tuple | list) and output_cols is not None
    parts = list(outputs) if several else [outputs]
    names = list(output_cols or ["prediction"])
    if len(names) != len(parts):
        raise ValueError(f"output_cols are {names}, and the model returns {len(parts)} outputs")
    if is_spark(data):
        return _spark_frame(data, prepared, parts, names)
    columns = {name: list(_rows(part)) for name, part in zip(names, parts, strict=True)}
    return data.assign(**columns)


def as_arrays(outputs: Any) -> Any:
    """Return a tree of tensors as one of arrays."""
    return map_tensors(lambda tensor: tensor.numpy(), outputs)  # type: ignore[arg-type, return-value]


def _rows(outputs: Any) -> Iterator[Any]:
    """Yield the outputs of each row: an array, or a tree of arrays."""
    arrays = as_arrays(outputs)
    for index in range(len(next(tensors(outputs)))):
        yield _at(arrays, index)


def _at(arrays: Any, index: Any) -> Any:
    if isinstance(arrays, Mapping):
        return {key: _at(value, index) for key, value in arrays.items()}
    if isinstance(arrays, tuple | list):
        return [_at(value, index) for value in arrays]
    return arrays[index]


def _named(outputs: Any) -> dict[str, Any]:
    if isinstance(outputs, tuple | list):
        return {f"output_{index}": output for index, output in enumerate(outputs)}
    return {"output_0" if isinstance(outputs, Mapping) else "prediction": outputs}


def _shards(data: XShards, prepared: Partitions, outputs: Any) -> SparkXShards:
    """Return the shards with their predictions, in the same partitions."""
    arrays, begin = as_arrays(outputs), 0
    parts: list[list[Any]] = []
    for sizes in prepared.sizes:
        parts.append([])
        for size in sizes:
            parts[-1].append(_named(_at(arrays, slice(begin, begin + size))))
            begin += size

    def with_prediction(pair: Any) -> Any:
        shard, found = pair
        if isinstance(shard, dict):
            return shard | found
        values = {n: list(v.tolist() if v.ndim > 1 else v) for n, v in found.items()}
        return shard.assign(**values)

    context = data.rdd.context
    found = context.parallelize(parts, len(parts)).flatMap(lambda part: part)
    return SparkXShards(data.rdd.zip(found).map(with_prediction))


def _spark_frame(
    data: Any, prepared: Partitions, outputs: Sequence[Any], names: Sequence[str]
) -> Any:
    """Return a DataFrame of Spark with further columns."""
    rows = zip(*([_spark_value(v) for v in _rows(output)] for output in outputs), strict=True)
    values, parts, begin = list(rows), [], 0
    for (size,) in prepared.sizes:
        parts.append(values[begin : begin + size])
        begin += size
    session = data.sparkSession
    added = session.createDataFrame(values[:1], list(names)).schema
    schema = type(added)([*data.schema.fields, *added.fields])
    found = session.sparkContext.parallelize(parts, len(parts)).flatMap(lambda part: part)
    joined = data.rdd.zip(found).map(lambda pair: (*pair[0], *pair[1]))
    return session.createDataFrame(joined, schema)


def _spark_value(value: Any) -> Any:
    """Return a number, a vector, a nested list, or a map, as Spark has them."""
    if isinstance(value, Mapping):
        return {key: _spark_value(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_spark_value(part) for part in value]
    array = np.asarray(value)
    if array.ndim == 0:
        return float(array)
    return (
        import_module("pyspark.ml.linalg").Vectors.dense(array)
        if array.ndim == 1
        else array.tolist()
    )
