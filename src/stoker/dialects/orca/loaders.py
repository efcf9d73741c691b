"""Data loaders for the kinds of data that Orca accepts, and predictions in their form."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, SequentialSampler

from stoker.core import dist
from stoker.core.errors import did_you_mean
from stoker.core.tree import concatenate, describe, map_tensors, tensors
from stoker.data.dataloader import is_plain_loader
from stoker.data.samplers import is_plain
from stoker.data.sharding import unsharded
from stoker.dialects.orca.shards import SparkXShards, XShards

_LOADER_OPTIONS = (
    "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory", "drop_last",
    "timeout", "worker_init_fn", "multiprocessing_context",
)  # fmt: skip


class Columns(Dataset[Any]):
    """A dataset of columns. A row is ``(*features, label)``, or ``(*features,)``.

    A label may be a list of arrays, or a dict for labels with names.
    """

    def __init__(self, features: Any, label: Any = None) -> None:
        several = isinstance(features, tuple | list)
        parts = [*features] if several else [features]
        self.columns = [_tensors(part) for part in (*parts, *([] if label is None else [label]))]
        sizes = {len(column) for column in tensors(self.columns)}
        if len(sizes) != 1:
            raise ValueError(f"columns have {sorted(sizes)} rows, expected as many in each")
        self._size = sizes.pop()

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(map_tensors(lambda column: column[index], self.columns))

    def rows(self, part: slice) -> "Columns":
        """Return some of the rows."""
        return self._with(map_tensors(lambda column: column[part], self.columns))

    def of_dtype(self, dtype: torch.dtype) -> "Columns":
        """Return the columns with doubles, which NumPy prefers, as the numbers of the model."""
        double = torch.float64
        return self._with(
            map_tensors(lambda c: c.to(dtype if c.dtype == double else c.dtype), self.columns)
        )

    @classmethod
    def joined(cls, parts: Sequence["Columns"]) -> "Columns":
        """Return the rows of several ones."""
        return parts[0]._with(concatenate([part.columns for part in parts]))

    def _with(self, columns: list[Any]) -> "Columns":
        found = object.__new__(type(self))
        found.columns = columns
        found._size = len(next(tensors(columns)))
        return found


@dataclass
class Partitions:
    """The rows of a DataFrame or of shards, in partitions."""

    parts: list[Columns]
    sizes: list[list[int]]
    """How many rows each shard of each partition has."""

    def of_rank(self, rank: int, world_size: int) -> Columns:
        """Return the rows of a process: a partition, if there are as many, or an equal part."""
        if len(self.parts) == world_size and all(map(len, self.parts)):
            return self.parts[rank]
        rows = self.joined()
        if len(rows) < world_size:
            raise ValueError(f"the data has {len(rows)} rows, too few for {world_size} workers")
        begin, end = (len(rows) * n // world_size for n in (rank, rank + 1))
        return rows.rows(slice(begin, end))

    def joined(self) -> Columns:
        """Return all rows."""
        return Columns.joined([part for part in self.parts if len(part)])


def sendable(
    data: Any, feature_cols: Sequence[str] | None, label_cols: Sequence[str] | str | None
) -> Any:
    """Return the data in a form that can be sent to a worker."""
    labels = [label_cols] if isinstance(label_cols, str) else list(label_cols or ())
    if isinstance(data, XShards):
        return _of_shards(data, feature_cols, labels)
    if _is_frame(data):
        return _of_frame(data, _features(data, feature_cols, labels), labels)
    if data is not None and (feature_cols or labels):
        raise ValueError(
            f"feature_cols and label_cols are about a DataFrame, and data is a "
            f"{type(data).__name__}"
        )
    if isinstance(data, np.ndarray | Tensor):
        return Columns(data)
    return _of_mapping(data) if isinstance(data, Mapping) else data


def _features(
    data: Any, feature_cols: Sequence[str] | None, label_cols: Sequence[str]
) -> Sequence[str]:
    if not feature_cols:
        raise ValueError("data is a DataFrame: say which feature_cols the model gets")
    known = data.columns() if callable(data.columns) else list(data.columns)
    for name in (*feature_cols, *label_cols):
        if name not in known:
            raise ValueError(f"the DataFrame has no column {name!r}{did_you_mean(name, known)}")
    return list(feature_cols)


def _of_frame(data: Any, features: Sequence[str], labels: Sequence[str]) -> Any:
    if _is_ray(data):  # its features are one matrix, as its to_torch() returns them
        if len(labels) > 1:
            raise ValueError(f"a Dataset of Ray has one label column, got {labels}")
        table = data.to_pandas()
        label = table[labels[0]].to_numpy()[:, None] if labels else None
        return Columns([table[list(features)].to_numpy()], label)
    if not _is_spark(data):
        return _of_table(data, features, labels)
    rows = data.select(*features, *labels).rdd.glom().collect()
    parts = [_of_table(part, features, labels) for part in rows if part]
    return Partitions(parts, [[len(part)] for part in rows])


def _of_table(table: Any, features: Sequence[str], labels: Sequence[str]) -> Columns:
    """Return columns of a pandas DataFrame or of rows of Spark."""
    is_rows = isinstance(table, list)

    def column(name: str) -> Any:
        return _column([row[name] for row in table] if is_rows else table[name])

    found = [column(name) for name in labels]
    label = (found[0] if len(found) == 1 else found) if found else None
    return Columns([column(name) for name in features], label)


def _of_mapping(data: Mapping[str, Any]) -> Columns:
    if "x" not in data or data.keys() - {"x", "y", "prediction"}:
        raise ValueError(f"data is a dict of {sorted(data)}, expected 'x' and 'y'")
    return Columns(data["x"], data.get("y"))


def _of_shards(
    data: XShards, feature_cols: Sequence[str] | None, label_cols: Sequence[str]
) -> Partitions:
    def columns(shard: Any) -> Columns:
        if _is_frame(shard):
            return _of_table(shard, _features(shard, feature_cols, label_cols), label_cols)
        if not isinstance(shard, Mapping):
            raise TypeError(
                f"a shard is a {type(shard).__name__}, expected a dict of 'x' and 'y', or a "
                "pandas DataFrame"
            )
        return _of_mapping(shard)

    found = [[columns(shard) for shard in part] for part in data.rdd.glom().collect()]
    sizes = [[len(shard) for shard in part] for part in found]
    return Partitions([Columns.joined(part) for part in found if part], sizes)


def loader_of(
    data: Any, config: Any, batch_size: int, model: nn.Module, *, task: str = "predict"
) -> Any:
    """Return a loader from a creator, a dataset, a loader, or the columns of a DataFrame."""
    if isinstance(data, Columns | Partitions):
        columns = data.joined() if isinstance(data, Partitions) else data
        per_rank = isinstance(data, Partitions) and task != "predict"
        if isinstance(data, Partitions) and per_rank:
            columns = data.of_rank(dist.rank(), dist.world_size())
        options: dict[str, Any] = {"batch_size": batch_size, "shuffle": task == "fit"}
        if isinstance(config, Mapping):
            options |= {name: config[name] for name in _LOADER_OPTIONS if name in config}
        loader = DataLoader(columns.of_dtype(_dtype_of(model)), **options)
        return unsharded(loader) if per_rank else loader
    if isinstance(data, Dataset):
        return DataLoader(data, batch_size=batch_size, shuffle=task == "fit")
    if isinstance(data, DataLoader) or not isinstance(data, Callable):  # type: ignore[arg-type]
        return data
    made = data(config, batch_size)
    if made is None:
        name = getattr(data, "__name__", type(data).__name__)
        raise TypeError(f"the creator {name} returned None, expected a loader")
    is_dataset = isinstance(made, Dataset)
    return loader_of(made, config, batch_size, model, task=task) if is_dataset else made


def shuffled(loader: Any) -> Any:
    """Return a loader of the same data in random order, unless it has an order of its own."""
    if not is_plain_loader(loader) or not is_plain(loader.sampler, SequentialSampler):
        return loader
    if loader.batch_size is None and loader.batch_sampler is not None:
        return loader
    names = (
        *("batch_size", "collate_fn", "drop_last", "generator", "num_workers", "pin_memory"),
        *("persistent_workers", "prefetch_factor", "timeout", "worker_init_fn"),
    )
    options = {name: getattr(loader, name) for name in names}
    return DataLoader(loader.dataset, shuffle=True, **options)


def _dtype_of(model: nn.Module) -> torch.dtype:
    kinds = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(kinds, torch.float32)


def _is_frame(data: Any) -> bool:
    """Return whether the data is a DataFrame of Spark or pandas, or a Dataset of Ray."""
    return _is_spark(data) or _is_ray(data) or (hasattr(data, "columns") and hasattr(data, "iloc"))


def _is_spark(data: Any) -> bool:
    return hasattr(data, "toPandas") and hasattr(data, "rdd")


def _is_ray(data: Any) -> bool:
    return hasattr(data, "to_pandas") and hasattr(data, "iter_batches")


def _column(values: Iterable[Any]) -> Any:
    """Return the values of a column as arrays: of numbers, lists, vectors, or dicts of these."""
    rows = [row.toArray() if hasattr(row, "toArray") else row for row in values]
    if rows and isinstance(rows[0], Mapping):
        return {key: _column(row[key] for row in rows) for key in rows[0]}
    return _array(rows)


def _array(rows: Any) -> Tensor:
    try:
        return torch.from_numpy(np.array(rows))
    except (TypeError, ValueError) as error:
        kind = describe(list(rows)[:1])
        raise TypeError(
            f"a column of {kind} is no array of numbers: expected rows of the same shape"
        ) from error


def _tensors(column: Any) -> Any:
    """Return a tree of arrays as one of tensors."""
    if isinstance(column, Tensor):
        return column
    if isinstance(column, Mapping):
        return {key: _tensors(value) for key, value in column.items()}
    if isinstance(column, tuple | list) and column and np.ndim(column[0]):
        return [_tensors(value) for value in column]
    return _array(column)


def predicted(
    data: Any, prepared: Any, outputs: Any, output_cols: Sequence[str] | None = None
) -> Any:
    """Return the outputs for all rows in the form of the data, which was ``prepared`` to send."""
    if isinstance(data, XShards):
        return _shards(data, prepared, outputs)
    arrays = _as_arrays(outputs)
    if isinstance(data, Mapping):
        return {"prediction": arrays}
    if not _is_frame(data):
        return arrays
    if _is_ray(data):
        rows = [{"prediction_result": row} for row in _rows(arrays)]
        return import_module("ray.data").from_items(rows)
    several = isinstance(arrays, tuple | list) and output_cols is not None
    parts = list(arrays) if several else [arrays]
    names = list(output_cols or ["prediction"])
    if len(names) != len(parts):
        raise ValueError(f"output_cols are {names}, and the model returns {len(parts)} outputs")
    if _is_spark(data):
        return _spark_frame(data, prepared, parts, names)
    columns = {name: list(_rows(part)) for name, part in zip(names, parts, strict=True)}
    return data.assign(**columns)


def _as_arrays(outputs: Any) -> Any:
    return map_tensors(lambda tensor: tensor.numpy(), outputs)  # type: ignore[arg-type, return-value]


def _rows(arrays: Any) -> Iterator[Any]:
    """Yield the outputs of each row: an array, or a tree of arrays."""
    leaf = arrays
    while isinstance(leaf, Mapping | tuple | list):
        leaf = next(iter(leaf.values() if isinstance(leaf, Mapping) else leaf))
    for index in range(len(leaf)):
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
    arrays, begin = _as_arrays(outputs), 0
    parts: list[list[Any]] = []
    for sizes in prepared.sizes:
        parts.append([])
        for size in sizes:
            parts[-1].append(_named(_at(arrays, slice(begin, begin + size))))
            begin += size
    if data.is_frames():
        parts = [[{n: _cells(v) for n, v in one.items()} for one in part] for part in parts]
    found = data.rdd.context.parallelize(parts, len(parts)).flatMap(lambda part: part)
    joined = data.rdd.zip(found)
    if data.is_frames():
        return SparkXShards(joined.map(lambda pair: pair[0].assign(**pair[1])))
    return SparkXShards(joined.map(lambda pair: {**pair[0], **pair[1]}))


def _cells(arrays: Any) -> list[Any]:
    return [row.tolist() if hasattr(row, "tolist") else row for row in _rows(arrays)]


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
