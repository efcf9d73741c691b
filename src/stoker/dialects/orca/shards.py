"""`XShards`: data in shards, which Spark or this process transforms."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from glob import glob
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np

from stoker.core.errors import did_you_mean
from stoker.dialects.orca.common import OrcaContext

__all__ = ["SharedValue", "SparkXShards", "XShards", "read_csv", "read_json", "read_parquet"]

_FRAME = "pandas.core.frame.DataFrame"


class XShards:
    """Data in shards: arrays, dicts of arrays, pandas DataFrames, or anything else.

    Args:
        rdd: An RDD of Spark whose elements are the shards.
        transient: Compute the shards only when they are needed, and do not cache them.
        class_name: The type of the shards, if known.
    """

    def __init__(self, rdd: Any, transient: bool = False, class_name: str | None = None) -> None:
        _send_functions_of_this_module()
        self.rdd, self._class_name, self.is_lazy = rdd, class_name, transient
        if not transient:
            rdd.cache()

    # Making them

    @classmethod
    def lazy(cls, rdd: Any, class_name: str | None = None) -> "SparkXShards":
        """Return shards that are computed when they are needed."""
        return SparkXShards(rdd, transient=True, class_name=class_name)

    @staticmethod
    def partition(data: Any, num_shards: int | None = None) -> "SparkXShards":
        """Divide arrays, or a nest of tuples, lists and dicts of arrays, into shards."""
        count = num_shards or OrcaContext.get_spark_context().defaultParallelism
        arrays = list(_leaves(data))
        sizes = {len(array) for array in arrays}
        if len(sizes) != 1:
            raise ValueError(f"arrays have {sorted(sizes)} rows, expected as many in each")
        if len(arrays[0]) < count:
            raise ValueError(f"{len(arrays[0])} rows cannot be divided into {count} shards")
        shards = [_map(partial(_share, count, n), data) for n in range(count)]
        return SparkXShards(OrcaContext.get_spark_context().parallelize(shards, count))

    @classmethod
    def load_pickle(cls, path: str, minPartitions: int | None = None) -> "SparkXShards":  # noqa: N803
        """Return what `save_pickle` wrote. Load only what you trust: pickles run code."""
        return SparkXShards(OrcaContext.get_spark_context().pickleFile(path, minPartitions))

    def save_pickle(self, path: str, batchSize: int = 10) -> "SparkXShards":  # noqa: N803
        """Write the shards as pickles."""
        self.rdd.saveAsPickleFile(path, batchSize)
        return self  # type: ignore[return-value]

    # Reading them

    def collect(self) -> list[Any]:
        """Return all shards."""
        found: list[Any] = self.rdd.collect()
        return found

    def first(self) -> Any:
        """Return the first shard."""
        return self.rdd.first()

    def take(self, n: int) -> list[Any]:
        """Return the first ``n`` shards."""
        found: list[Any] = self.rdd.take(n)
        return found

    def num_partitions(self) -> int:
        """Return the number of partitions, each of which has any number of shards."""
        return int(self.rdd.getNumPartitions())

    def __len__(self) -> int:
        return sum(self.rdd.map(lambda shard: len(next(_leaves(shard)))).collect())

    def __getitem__(self, key: str) -> "SparkXShards":
        return self.transform_shard(lambda shard: shard[key])

    def concat_to_pdf(self, axis: int = 0) -> Any:
        """Return the rows of all shards as one pandas DataFrame."""
        self._check_frames("concat_to_pdf")
        return import_module("pandas").concat(self.collect(), axis=axis)

    def head(self, n: int = 5) -> Any:
        """Return the first rows as a pandas DataFrame."""
        self._check_frames("head")
        return self.first().head(n)

    def to_spark_df(self) -> Any:
        """Return the rows of all shards as a DataFrame of Spark."""
        return OrcaContext.get_spark_session().createDataFrame(self.concat_to_pdf())

    def get_schema(self) -> dict[str, Any] | None:
        """Return the columns and types of pandas shards, else None."""
        first = self.first()
        if not self._is_frames():
            return None
        return {"columns": first.columns, "dtypes": first.dtypes}

    def unique(self) -> Any:
        """Return the different values of shards that are pandas Series or arrays."""
        pandas = import_module("pandas")
        return pandas.unique(np.concatenate([np.asarray(shard) for shard in self.collect()]))

    # Transforming them

    def transform_shard(self, func: Callable[..., Any], *args: Any) -> "SparkXShards":
        """Return the results of a function of each shard."""
        rdd = self.rdd.map(lambda shard: func(shard, *args))
        return SparkXShards(rdd, transient=self.is_lazy)

    def repartition(self, num_partitions: int) -> "SparkXShards":
        """Return as many partitions; the rows of arrays, dicts and DataFrames are moved alone."""
        if num_partitions <= self.num_partitions():
            return self._of(self.rdd.coalesce(num_partitions).mapPartitions(_merged))
        return self._of(self.rdd.flatMap(_rows).repartition(num_partitions).mapPartitions(_merged))

    def partition_by(self, cols: str, num_partitions: int | None = None) -> "SparkXShards":
        """Return pandas shards in which equal values of a column are in one shard."""
        self._check_frames("partition_by")
        known = list(self.first().columns)
        if cols not in known:
            raise ValueError(f"the shards have no column {cols!r}{did_you_mean(cols, known)}")

        def groups(frame: Any) -> list[Any]:
            return list(frame.groupby(cols, sort=False))

        keyed = self.rdd.flatMap(groups).partitionBy(num_partitions or self.num_partitions())
        return self._of(keyed.values().mapPartitions(_merged))

    def split(self) -> list["SparkXShards"]:
        """Return one object per part of shards that are lists or tuples of the same length."""
        lengths = set(self.rdd.map(_length).collect())
        if len(lengths) != 1 or None in lengths:
            raise ValueError("split() needs shards that are lists or tuples of the same length")
        return [self.transform_shard(_part, index) for index in range(lengths.pop())]

    def zip(self, other: "XShards") -> "SparkXShards":
        """Return pairs of the shards of two objects of the same partitions."""
        return SparkXShards(self.rdd.zip(other.rdd), transient=self.is_lazy)

    def merge(self, right: "XShards", how: str = "inner", on: Any = None) -> "SparkXShards":
        """Join pandas shards on columns."""
        pandas = import_module("pandas")
        joined = pandas.merge(self.concat_to_pdf(), right.concat_to_pdf(), how=how, on=on)
        return _divided(joined, max(1, self.num_partitions()))

    def select(self, cols: str | Sequence[str]) -> "SparkXShards":
        """Return some columns of pandas shards."""
        self._check_frames("select")
        names = [cols] if isinstance(cols, str) else list(cols)
        return self.transform_shard(lambda frame: frame[names])

    def sort_values(
        self, col_names: str | Sequence[str] | None = None, ascending: bool = True
    ) -> "SparkXShards":
        """Return pandas shards sorted by columns, by default all."""
        rows = self.concat_to_pdf()
        names = list(rows.columns) if col_names is None else col_names
        return _divided(rows.sort_values(names, ascending=ascending), self.num_partitions())

    def assembleFeatureLabelCols(  # noqa: N802
        self,
        featureCols: Sequence[str],  # noqa: N803
        labelCols: Sequence[str],  # noqa: N803
    ) -> "SparkXShards":
        """Return dicts of a matrix "x" of feature columns and a matrix "y" of label columns."""
        self._check_frames("assembleFeatureLabelCols")
        features, labels = list(featureCols), list(labelCols)
        return self.transform_shard(
            lambda frame: {"x": frame[features].to_numpy(), "y": frame[labels].to_numpy()}
        )

    # Computing them

    def to_lazy(self) -> "XShards":
        """Compute what follows only when it is needed."""
        self.is_lazy = True
        return self

    def compute(self) -> "XShards":
        """Compute the shards now."""
        self.rdd.count()
        return self

    def cache(self) -> "XShards":
        """Keep the shards in memory."""
        self.rdd.cache()
        return self

    def uncache(self) -> "XShards":
        """Release the memory of the shards."""
        self.rdd.unpersist()
        return self

    def is_cached(self) -> bool:
        """Return whether the shards are kept in memory."""
        return bool(self.rdd.is_cached)

    def _of(self, rdd: Any) -> "SparkXShards":
        return SparkXShards(rdd, transient=self.is_lazy, class_name=self._class_name)

    def _get_class_name(self) -> str:
        if self._class_name is None:
            kind = type(self.first())
            self._class_name = (
                _FRAME if _is_frame(self.first()) else f"{kind.__module__}.{kind.__name__}"
            )
        return self._class_name

    def _is_frames(self) -> bool:
        return self._get_class_name() == _FRAME

    def _check_frames(self, method: str) -> None:
        if not self._is_frames():
            raise TypeError(
                f"{method}() needs shards that are pandas DataFrames, got {self._get_class_name()}"
            )


class SparkXShards(XShards):
    """Shards that Spark transforms."""


class SharedValue:
    """A value that is sent to the workers of Spark once."""

    def __init__(self, data: Any) -> None:
        self.broadcast_data = OrcaContext.get_spark_context().broadcast(data)

    @property
    def value(self) -> Any:
        """The value."""
        return self.broadcast_data.value

    def unpersist(self) -> None:
        """Release its memory on the workers."""
        self.broadcast_data.unpersist()


def read_csv(file_path: str | Sequence[str], **kwargs: Any) -> SparkXShards:
    """Return CSV files as pandas shards; further arguments are those of ``pandas.read_csv``."""
    return _read("csv", file_path, kwargs)


def read_json(file_path: str | Sequence[str], **kwargs: Any) -> SparkXShards:
    """Return JSON files as pandas shards; further arguments are those of ``pandas.read_json``."""
    return _read("json", file_path, kwargs)


def read_parquet(
    file_path: str | Sequence[str], columns: Sequence[str] | None = None, **options: Any
) -> SparkXShards:
    """Return Parquet files as pandas shards; options are those of ``pandas.read_parquet``."""
    return _read("parquet", file_path, {"columns": columns, **options})


def _read(kind: str, given: str | Sequence[str], options: dict[str, Any]) -> SparkXShards:
    paths = [path for one in ([given] if isinstance(given, str) else given) for path in _files(one)]
    context = OrcaContext.get_spark_context()
    parts = min(len(paths), context.defaultParallelism)

    def read(path: str) -> Any:
        return getattr(import_module("pandas"), f"read_{kind}")(path, **options)

    return SparkXShards(context.parallelize(paths, parts).map(read), class_name=_FRAME)


def _files(path: str) -> list[str]:
    if "://" in path and not path.startswith("file://"):
        return [path]  # pandas reads it, or says what it needs
    local = path.removeprefix("file://")
    inside = sorted(p for p in glob(os.path.join(local, "*")) if os.path.isfile(p))
    found = inside if os.path.isdir(local) else sorted(glob(local))
    found = [p for p in found if not os.path.basename(p).startswith((".", "_"))]
    if not found:
        raise FileNotFoundError(f"there is no file '{path}'")
    return [os.path.abspath(p) for p in found]


def _divided(rows: Any, count: int) -> SparkXShards:
    ends = [len(rows) * n // count for n in range(count + 1)]
    parts = [rows.iloc[begin:end] for begin, end in pairwise(ends)]
    context = OrcaContext.get_spark_context()
    return SparkXShards(context.parallelize(parts, count), class_name=_FRAME)


# What Spark's workers call


def _send_functions_of_this_module() -> None:
    """Send these functions by value, so that Spark's workers need not import Stoker and torch."""
    cloudpickle = import_module("pyspark.cloudpickle")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])


def _is_frame(shard: Any) -> bool:
    return hasattr(shard, "iloc") and hasattr(shard, "columns")


def _leaves(shard: Any) -> Any:
    if isinstance(shard, Mapping):
        shard = list(shard.values())
    if isinstance(shard, tuple | list):
        for part in shard:
            yield from _leaves(part)
    else:
        yield shard


def _map(function: Callable[[Any], Any], shard: Any) -> Any:
    if isinstance(shard, Mapping):
        return {key: _map(function, value) for key, value in shard.items()}
    if isinstance(shard, tuple | list):
        return type(shard)([_map(function, part) for part in shard])
    return function(shard)


def _length(shard: Any) -> int | None:
    return len(shard) if isinstance(shard, tuple | list) else None


def _part(shard: Any, index: int) -> Any:
    return shard[index]


def _rows(shard: Any) -> Iterable[Any]:
    """Return the rows of a shard as shards of one row."""
    if _is_frame(shard):
        return [shard.iloc[n : n + 1] for n in range(len(shard))]
    if isinstance(shard, list):
        return [[one] for one in shard]
    arrays = list(_leaves(shard))
    if not all(hasattr(array, "shape") and array.shape for array in arrays):
        return [shard]
    return [_map(partial(_row, n), shard) for n in range(len(arrays[0]))]


def _row(number: int, array: Any) -> Any:
    return array[number : number + 1]


def _share(count: int, number: int, array: Any) -> Any:
    return np.array_split(array, count)[number]


def _merged(shards: Iterable[Any]) -> list[Any]:
    """Return the shards of a partition as one, if they have rows."""
    found = list(shards)
    if len(found) < 2:
        return found
    if _is_frame(found[0]):
        return [import_module("pandas").concat(found)]
    if isinstance(found[0], list):
        return [reduce(lambda a, b: a + b, found)]
    if not all(hasattr(array, "shape") and array.shape for array in _leaves(found[0])):
        return found
    return [_joined(found)]


def _joined(shards: list[Any]) -> Any:
    first = shards[0]
    if isinstance(first, Mapping):
        return {key: _joined([shard[key] for shard in shards]) for key in first}
    if isinstance(first, tuple | list):
        return type(first)([_joined(list(parts)) for parts in zip(*shards, strict=True)])
    return np.concatenate(shards)
