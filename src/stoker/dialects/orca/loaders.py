"""Data loaders for the kinds of data that Orca accepts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from stoker.core.errors import did_you_mean
from stoker.core.tree import describe, map_tensors


class Columns(Dataset[Any]):
    """A dataset of columns: ``(features, labels)``, or only features."""

    def __init__(self, features: Sequence[Any], labels: Sequence[Any] = ()) -> None:
        self.features = [_tensor(column) for column in features]
        self.labels = [_tensor(column) for column in labels]
        sizes = {len(column) for column in (*self.features, *self.labels)}
        if len(sizes) != 1:
            raise ValueError(f"columns have {sorted(sizes)} rows, expected as many in each")

    def __len__(self) -> int:
        return len(self.features[0])

    def __getitem__(self, index: int) -> Any:
        features = _one_or_all([column[index] for column in self.features])
        if not self.labels:
            return features
        return features, _one_or_all([column[index] for column in self.labels])


def sendable(
    data: Any, feature_cols: Sequence[str] | None, label_cols: Sequence[str] | None
) -> Any:
    """Return the data in a form that can be sent to a worker."""
    if data is None:
        return None
    if is_frame(data):
        if not feature_cols:
            raise ValueError("data is a DataFrame: say which feature_cols the model gets")
        table = data.toPandas() if hasattr(data, "toPandas") else data
        for name in (*feature_cols, *(label_cols or ())):
            if name not in table.columns:
                near = did_you_mean(name, table.columns)
                raise ValueError(f"the DataFrame has no column {name!r}{near}")
        return Columns(
            [table[name] for name in feature_cols], [table[name] for name in label_cols or ()]
        )
    if feature_cols or label_cols:
        raise ValueError(
            f"feature_cols and label_cols are about a DataFrame, and data is a "
            f"{type(data).__name__}"
        )
    if isinstance(data, Mapping):
        if "x" not in data or data.keys() - {"x", "y"}:
            raise ValueError(f"data is a dict of {sorted(data)}, expected 'x' and 'y'")
        return Columns(_all(data["x"]), _all(data.get("y", ())))
    return Columns([data]) if isinstance(data, np.ndarray | Tensor) else data


def loader_of(data: Any, config: Mapping[str, Any], batch_size: int, *, shuffle: bool) -> Any:
    """Return a loader from a creator, a dataset or a loader."""
    if isinstance(data, Dataset):
        return DataLoader(data, batch_size=batch_size, shuffle=shuffle)
    if isinstance(data, DataLoader) or not isinstance(data, Callable):  # type: ignore[arg-type]
        return data
    made = data(config, batch_size)
    if made is None:
        name = getattr(data, "__name__", type(data).__name__)
        raise TypeError(f"the creator {name} returned None, expected a loader")
    return (
        made
        if not isinstance(made, Dataset)
        else loader_of(made, config, batch_size, shuffle=shuffle)
    )


def is_frame(data: Any) -> bool:
    """Return whether the data is a DataFrame of Spark or pandas."""
    return hasattr(data, "toPandas") or (hasattr(data, "columns") and hasattr(data, "iloc"))


def predicted(data: Any, outputs: Any, output_cols: Sequence[str] | None) -> Any:
    """Return predictions in the form of the data: a DataFrame, a dict, or arrays."""
    arrays = map_tensors(lambda tensor: tensor.numpy(), outputs)  # type: ignore[arg-type, return-value]
    if isinstance(data, Mapping):
        return {"prediction": arrays}
    if not is_frame(data):
        return arrays
    several = list(arrays) if isinstance(arrays, tuple | list) else [arrays]
    names = list(output_cols or _names(len(several)))
    if len(names) != len(several):
        raise ValueError(f"output_cols are {names}, and the model returns {len(several)} outputs")
    columns = dict(zip(names, several, strict=True))
    if not hasattr(data, "toPandas"):
        return data.assign(**{name: list(array) for name, array in columns.items()})
    table = data.toPandas()
    for name, array in columns.items():
        table[name] = array.tolist()
    return data.sparkSession.createDataFrame(table)


def _names(count: int) -> list[str]:
    return ["prediction"] if count == 1 else [f"output_{index}" for index in range(count)]


def _tensor(column: Any) -> Tensor:
    if isinstance(column, Tensor):
        return column
    rows = [r.toArray() if hasattr(r, "toArray") else r for r in column]
    try:
        array = np.asarray(rows)
        tensor = torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise TypeError(f"a column of {describe(rows[:1])} is no array of numbers") from error
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _all(given: Any) -> Sequence[Any]:
    return given if isinstance(given, tuple | list) else (given,)


def _one_or_all(items: list[Any]) -> Any:
    return items[0] if len(items) == 1 else tuple(items)
