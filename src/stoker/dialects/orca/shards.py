"""`XShards`: data in shards, which Spark transforms."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from glob import glob
from importlib import import_module
from sysconfig import get_path
from typing import Any

import numpy as np

from stoker.core.errors import did_you_mean
from stoker.dialects.orca.common import OrcaContext

_FRAME = "pandas.core.frame.DataFrame"
_INSTALLED = tuple(get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib"))


class XShards:
    """Data in shards: arrays, dicts of arrays, pandas DataFrames, or anything else.

    The shards are the elements of an RDD of Spark. It is cached unless they are ``transient``.
    """

    def __init__(self, rdd: Any, transient: bool = False, class_name: str | None = None) -> None:
        _send_by_value(__name__)
        self.rdd, self._class_name, self.is_lazy = rdd, class_name, transient
        if not transient:
            rdd.cache()

    # Making them

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

    def __getattr__(self, name: str) -> Any:
        if name in ("collect", "first", "take"):
            return getattr(self.__dict__["rdd"], name)
        raise AttributeError(f"XShards have no {name!r}{did_you_mean(name, dir(XShards))}")

    def num_partitions(self) -> int:
        """Return the number of partitions, each of which has any number of shards."""
        return int(self.rdd.getNumPartitions())

    def __len__(self) -> int:
        return sum(self.rdd.map(lambda shard: len(next(_leaves(shard)))).collect())

    def __getitem__(self, key: str) -> "SparkXShards":
        return self.transform_shard(lambda shard: shard[key])

    def concat_to_pdf(self) -> Any:
        """Return the rows of all shards as one pandas DataFrame."""
        self._check_frames("concat_to_pdf")
        return import_module("pandas").concat(self.collect())

    def head(self, n: int = 5) -> Any:
        """Return the first rows as a pandas DataFrame."""
        self._check_frames("head")
        return self.first().head(n)

    def get_schema(self) -> dict[str, Any] | None:
        """Return the columns and types of pandas shards, else None."""
        first = self.first() if self.is_frames() else None
        return None if first is None else {"columns": first.columns, "dtypes": first.dtypes}

    def unique(self) -> Any:
        """Return the different values of shards that are pandas Series or arrays."""
        pandas = import_module("pandas")
        return pandas.unique(np.concatenate([np.asarray(shard) for shard in self.collect()]))

    # Transforming them

    def transform_shard(self, func: Callable[..., Any], *args: Any) -> "SparkXShards":
        """Return the results of a function of each shard."""
        _send_by_value(getattr(func, "__module__", __name__))
        rdd = self.rdd.map(lambda shard: func(shard, *args))
        return SparkXShards(rdd, transient=self.is_lazy)

    def repartition(self, num_partitions: int) -> "SparkXShards":
        """Return the same shards in as many partitions; a shard stays in one piece."""
        fewer = num_partitions <= self.num_partitions()
        return self._of((self.rdd.coalesce if fewer else self.rdd.repartition)(num_partitions))

    def partition_by(self, cols: str, num_partitions: int | None = None) -> "SparkXShards":
        """Return pandas shards in which equal values of a column are in one shard."""
        self._check_frames("partition_by")
        known = list(self.first().columns)
        if cols not in known:
            raise ValueError(f"the shards have no column {cols!r}{did_you_mean(cols, known)}")

        def groups(frame: Any) -> list[Any]:
            return list(frame.groupby(cols, sort=False))

        keyed = self.rdd.flatMap(groups).partitionBy(num_partitions or self.num_partitions())
        return self._of(keyed.values().mapPartitions(_concatenated))

    def split(self) -> list["SparkXShards"]:
        """Return one object per part of shards that are lists or tuples of the same length."""
        sized = self.rdd.map(lambda one: len(one) if isinstance(one, tuple | list) else 0)
        lengths = set(sized.collect())
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError("split() needs shards that are lists or tuples of the same length")
        return [self.transform_shard(lambda one, n: one[n], n) for n in range(lengths.pop())]

    def cache(self) -> "XShards":
        """Keep the shards in memory."""
        self.rdd.cache()
        return self

    def uncache(self) -> "XShards":
        """Release the memory of the shards."""
        self.rdd.unpersist()
        return self

    def _of(self, rdd: Any) -> "SparkXShards":
        return SparkXShards(rdd, transient=self.is_lazy, class_name=self._class_name)

    def _get_class_name(self) -> str:
        if self._class_name is None:
            kind = type(self.first())
            self._class_name = (
                _FRAME if _is_frame(self.first()) else f"{kind.__module__}.{kind.__name__}"
            )
        return self._class_name

    def is_frames(self) -> bool:
        """Return whether the shards are pandas DataFrames."""
        return self._get_class_name() == _FRAME

    def _check_frames(self, method: str) -> None:
        if not self.is_frames():
            raise TypeError(
                f"{method}() needs shards that are pandas DataFrames, got {self._get_class_name()}"
            )


class SparkXShards(XShards):
    """Shards that Spark transforms."""


def read_csv(file_path: str | Sequence[str], **kwargs: Any) -> SparkXShards:
    """Return CSV files as pandas shards; further arguments are those of ``pandas.read_csv``."""
    return _read("csv", file_path, kwargs)


def read_json(file_path: str | Sequence[str], **kwargs: Any) -> SparkXShards:
    """Return JSON files as pandas shards; further arguments are those of ``pandas.read_json``."""
    return _read("json", file_path, kwargs)


def read_parquet(file_path: str | Sequence[str], **kwargs: Any) -> SparkXShards:
    """Return Parquet files as pandas shards; arguments are those of ``pandas.read_parquet``."""
    return _read("parquet", file_path, kwargs)


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


# What Spark's workers call


def _send_by_value(module: str) -> None:
    """Send functions of this module, or of one that is not installed, by value.

    So Spark's workers import neither Stoker and torch, nor the modules next to a script.
    """
    file = getattr(sys.modules.get(module), "__file__", None) or _INSTALLED[0]
    if module == __name__ or not file.startswith(_INSTALLED):
        import_module("pyspark.cloudpickle").register_pickle_by_value(sys.modules[module])


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


def _share(count: int, number: int, array: Any) -> Any:
    return np.array_split(array, count)[number]


def _concatenated(frames: Iterable[Any]) -> list[Any]:
    found = list(frames)
    return [import_module("pandas").concat(found)] if found else []
