"""In-memory data: gather a batch with one indexing operation instead of sample by sample."""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
)
from torch.utils.data._utils import collate

from stoker.core.calls import check_keywords
from stoker.core.types import Batch
from stoker.data.samplers import batches_drawn

_Loader = TypeVar("_Loader")

Gather: TypeAlias = Callable[[Any], Any]
"""A function that returns the batch of samples at the given indices."""

_TORCH_COLLATE = {Tensor: collate.collate_tensor_fn, np.ndarray: collate.collate_numpy_array_fn}
"""The functions with which torch collates samples, unless they were replaced."""


def loader(
    dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None, **options: Any
) -> DataLoader[Any]:
    """Return a `DataLoader` that gathers entire batches if the data is in memory.

        loader((images, labels), 32, shuffle=True)
        loader({"input_ids": tokens, "labels": labels}, 8)

    Order, bits, types and random draws are those of a `DataLoader` that stacks sample by sample.
    The tensors and arrays of the dataset are looked up now, their contents with each batch.

    Args:
        dataset: a tensor or array; a tuple or dict of them, possibly nested, with the same number
            of rows each; a `TensorDataset`, `StackDataset` or `Subset` of these. Anything else is
            passed to a plain `DataLoader`.
        batch_size: the number of samples per batch.
        shuffle: whether to shuffle the samples in every pass.
        options: further arguments of `torch.utils.data.DataLoader`. With workers or a
            ``collate_fn``, samples are read one by one.
    """
    check_keywords(DataLoader, "loader", {"dataset": dataset, **options})
    if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
        raise TypeError(f"dataset is {dataset!r}, expected tensors, arrays or a Dataset"[:300])
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    plain = DataLoader(_as_dataset(dataset), batch_size, shuffle, **options)
    gather = _gather_of(plain)
    return plain if gather is None else _gathering(plain, gather)


def by_sample(loader: _Loader) -> _Loader:
    """Mark a loader so that its samples are always read one by one, and return it."""
    if isinstance(loader, DataLoader):  # nothing else is ever gathered
        if type(loader.dataset) is _GatheringDataset:
            raise ValueError(
                "this loader was built by stoker.data.loader, which gathers batches: build a "
                "torch.utils.data.DataLoader instead"
            )
        loader.by_sample = True
    return loader


def batches_of(loader: Any) -> Iterator[Batch]:
    """Start a pass over a loader; gather the batches if its data is in memory.

    The batches have the same bits as those of ``iter(loader)``, and draw the same random numbers.
    """
    gather = _gather_of(loader)
    if gather is None:
        return iter(loader)
    if loader.pin_memory:
        return iter(_gathering(loader, gather))
    order = batches_drawn(loader.batch_sampler)
    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)  # the workers' seed
    return map(gather, order)


def can_gather(loader: Any) -> bool:
    """Return whether the batches of a loader are gathered, so that reading them draws nothing."""
    return _gather_of(loader) is not None


def _gathering(loader: Any, gather: Gather) -> Any:
    """Return a copy of the loader whose iterators gather."""
    twin = copy(loader)
    dataset = _GatheringDataset(loader.dataset, gather)
    twin.__dict__.update(dataset=dataset, collate_fn=_identity)  # setattr is blocked
    return twin


class _GatheringDataset(Dataset[Any]):
    """In-memory data that returns entire batches from ``__getitems__``."""

    def __init__(self, data: Any, gather: Gather) -> None:
        self.data = data
        self.gather = gather

    def __getitem__(self, index: Any) -> Any:
        return self.data[index]

    def __getitems__(self, indices: Any) -> Any:
        return self.gather(indices)

    def __len__(self) -> int:
        return len(self.data)

    def __reduce__(self) -> tuple[Any, ...]:
        return _gathering_dataset, (self.data,)  # closures cannot be pickled


def _gathering_dataset(data: Any) -> Any:
    """Wrap the data if it can be gathered, otherwise return it."""
    gather = _gather(data)
    return data if gather is None else _GatheringDataset(data, gather)


def _identity(batch: Any) -> Any:
    return batch


def _as_dataset(data: Any) -> Any:
    """Convert tuples and dicts of arrays to a dataset of their rows; return anything else."""
    if isinstance(data, Tensor | np.ndarray) or not _is_columns(data):
        return data
    columns = data if isinstance(data, Mapping) else dict(enumerate(data))
    stacked: dict[Any, Any] = {name: _as_dataset(column) for name, column in columns.items()}
    sizes = {name: len(column) for name, column in stacked.items()}
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{name!r} has {size}" for name, size in sizes.items())
        raise ValueError(f"all columns must have the same number of rows, but {found}")
    return StackDataset(**stacked) if isinstance(data, Mapping) else StackDataset(*stacked.values())


def _is_columns(data: Any) -> bool:
    if isinstance(data, tuple | Mapping):
        columns = data.values() if isinstance(data, Mapping) else data
        return len(data) > 0 and all(_is_columns(column) for column in columns)
    return isinstance(data, Tensor | np.ndarray)


def _gather_of(loader: Any) -> Gather | None:
    """Return the function that gathers this loader's batches; None if it cannot be gathered."""
    plain = type(loader) is DataLoader and loader.batch_sampler is not None
    if not plain or loader.num_workers or getattr(loader, "by_sample", False):
        return None
    if type(loader.dataset) is _GatheringDataset and loader.collate_fn is _identity:
        return loader.dataset.gather
    return _gather(loader.dataset) if loader.collate_fn is default_collate else None


def _gather(data: Any) -> Gather | None:
    """Return the function that gathers batches of this data; None if it cannot be gathered.

    The function is verified on the first sample. Indices other than non-negative integers, and
    errors, are left to torch.
    """
    collate_fns = collate.default_collate_fn_map
    if any(collate_fns[kind] is not function for kind, function in _TORCH_COLLATE.items()):
        return None
    try:
        rows = _rows(data)
        if _layout(rows(torch.tensor([0, 0]))) != _layout(default_collate([data[0], data[0]])):
            return None
    except Exception:  # a plain DataLoader handles or reports whatever is wrong with the data
        return None

    def gather(indices: Any) -> Any:
        try:
            index = _index(indices)
            if index.dtype == torch.int64 and index.ndim == 1:
                return rows(index)
        except (IndexError, TypeError, ValueError, RuntimeError):
            pass
        return default_collate([data[index] for index in indices])

    return gather


def _rows(data: Any) -> Gather:
    """Return the function that selects rows of data made of tensors and arrays only."""
    kind = type(data)
    if kind is Tensor and not data.requires_grad:
        if data.device.type == "cpu":
            return partial(torch.index_select, data, 0)
        return lambda index: data.index_select(0, index.to(data.device))
    if kind is np.ndarray or kind is np.memmap:
        tensor, dtype = torch.from_numpy(data), default_collate([data[0]]).dtype
        return lambda index: tensor.index_select(0, index).to(dtype)
    if kind is StackDataset and isinstance(data.datasets, dict):
        named = {name: _rows(column) for name, column in data.datasets.items()}
        return lambda index: {name: column(index) for name, column in named.items()}
    if kind is TensorDataset or kind is StackDataset:
        columns = [_rows(c) for c in (data.tensors if kind is TensorDataset else data.datasets)]
        return lambda index: [column(index) for column in columns]
    if kind is Subset:
        inner, chosen = _rows(data.dataset), _index(data.indices)
        return lambda index: inner(chosen.index_select(0, index))
    raise TypeError(f"cannot gather rows of {kind.__name__}")


def _index(indices: Any) -> Tensor:
    """Convert indices to a tensor; for a list, NumPy takes a fifth of the time of torch."""
    return indices if isinstance(indices, Tensor) else torch.from_numpy(np.array(indices))


def _layout(batch: Any) -> Any:
    """Return the types, shapes and strides in a batch."""
    if isinstance(batch, Tensor):
        return type(batch), batch.dtype, batch.shape, batch.stride(), batch.device
    if isinstance(batch, dict):
        return type(batch), {name: _layout(column) for name, column in batch.items()}
    return type(batch), [_layout(column) for column in batch]
