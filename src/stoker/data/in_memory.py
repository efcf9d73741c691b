"""Batches of data in memory: gathered by their indices at once instead of sample by sample."""

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

from stoker.core.types import Batch
from stoker.data.resume.skipping_sampler import batches_drawn

_Loader = TypeVar("_Loader")

Gather: TypeAlias = Callable[[Any], Any]
"""What makes a batch of the samples at some indices."""


_USUAL = {Tensor: collate.collate_tensor_fn, np.ndarray: collate.collate_numpy_array_fn}
"""How torch puts samples together, unless somebody has told it to do otherwise."""


def loader(
    dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None, **options: Any
) -> DataLoader[Any]:
    """A `DataLoader` that gathers a batch at once where the data is in memory.

        loader((images, labels), 32, shuffle=True)
        loader({"input_ids": tokens, "labels": labels}, 8)

    Order, bits, types and random draws are those of a `DataLoader` that stacks sample by sample.
    Which tensors and arrays a dataset has is looked up now, what is in them at each batch.

    Args:
        dataset: a tensor or array; a tuple or dict of them, nested or not, which have as many
            rows each; a `TensorDataset`, `StackDataset` or `Subset` of such. Anything else is a
            dataset for a plain `DataLoader`.
        batch_size: samples per batch.
        shuffle: whether each pass has an order of its own.
        options: further arguments of `torch.utils.data.DataLoader`. With workers or a
            ``collate_fn``, samples are made one by one.
    """
    made = DataLoader(_as_dataset(dataset), batch_size, shuffle, **options)
    gather = _gather_of(made)
    return made if gather is None else _gathering(made, gather)


def by_sample(loader: _Loader) -> _Loader:
    """The loader itself, marked: its batches are made sample by sample, whatever its data is."""
    if isinstance(loader, DataLoader):  # nothing else is ever gathered
        if type(loader.dataset) is _Gathered:
            raise ValueError(
                "this loader was made by stoker.data.loader, to gather its batches: make a "
                "torch.utils.data.DataLoader instead"
            )
        loader.by_sample = True
    return loader


def batches_of(loader: Any) -> Iterator[Batch]:
    """One pass over a loader; where its data is in memory, batches are gathered.

    They are what ``iter(loader)`` gives, in the same bits, and draw the same random numbers.
    """
    gather = _gather_of(loader)
    if gather is None:
        return iter(loader)
    if loader.pin_memory:
        return iter(_gathering(loader, gather))
    order = batches_drawn(loader.batch_sampler)
    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)  # the workers' seed
    return map(gather, order)


def _gathering(loader: Any, gather: Gather) -> Any:
    """The same loader; its own iterators gather."""
    twin = copy(loader)
    dataset = _Gathered(loader.dataset, gather)
    twin.__dict__.update(dataset=dataset, collate_fn=_as_it_is)  # a loader guards its attributes
    return twin


class _Gathered(Dataset[Any]):
    """Data in memory whose batches come ready."""

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
        return _gathered, (self.data,)  # functions of functions cannot be pickled


def _gathered(data: Any) -> Any:
    """The data as a dataset whose batches come ready, or itself where it is not in memory."""
    gather = _gather(data)
    return data if gather is None else _Gathered(data, gather)


def _as_it_is(batch: Any) -> Any:
    return batch


def _as_dataset(data: Any) -> Any:
    """Tuples and dicts of arrays as a dataset of their rows, anything else as it is."""
    if isinstance(data, Tensor | np.ndarray) or not _is_columns(data):
        return data
    columns = data if isinstance(data, Mapping) else dict(enumerate(data))
    parts: dict[Any, Any] = {name: _as_dataset(column) for name, column in columns.items()}
    sizes = {name: len(part) for name, part in parts.items()}
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{name!r} has {size}" for name, size in sizes.items())
        raise ValueError(f"columns of data have as many rows each, but {found}")
    return StackDataset(**parts) if isinstance(data, Mapping) else StackDataset(*parts.values())


def _is_columns(data: Any) -> bool:
    if isinstance(data, tuple | Mapping):
        columns = data.values() if isinstance(data, Mapping) else data
        return len(data) > 0 and all(_is_columns(column) for column in columns)
    return isinstance(data, Tensor | np.ndarray)


def _gather_of(loader: Any) -> Gather | None:
    """How batches of this loader are gathered; None where only the loader can make them."""
    plain = type(loader) is DataLoader and loader.batch_sampler is not None
    if not plain or loader.num_workers or getattr(loader, "by_sample", False):
        return None
    if type(loader.dataset) is _Gathered and loader.collate_fn is _as_it_is:
        return loader.dataset.gather
    return _gather(loader.dataset) if loader.collate_fn is default_collate else None


def _gather(data: Any) -> Gather | None:
    """What makes a batch of the samples at some indices, None where one by one is the only way.

    It is tried on the first sample. An index that is no whole number from 0, such as -1, is left
    to torch, and so are errors.
    """
    if any(collate.default_collate_fn_map[kind] is not usual for kind, usual in _USUAL.items()):
        return None
    try:
        rows = _rows(data)
        if _form(rows(torch.tensor([0, 0]))) != _form(default_collate([data[0], data[0]])):
            return None
    except Exception:  # whatever is odd about the data, a DataLoader knows it, or says it
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
    """What takes rows out of data that is made of tensors and arrays alone."""
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
    raise TypeError(f"{kind.__name__} is not known to be in memory")


def _index(indices: Any) -> Tensor:
    """Indices as a tensor; that of a list is made by NumPy in a fifth of the time torch takes."""
    return indices if isinstance(indices, Tensor) else torch.from_numpy(np.array(indices))


def _form(batch: Any) -> Any:
    """What two ways to make a batch must have in common."""
    if isinstance(batch, Tensor):
        return type(batch), batch.dtype, batch.shape, batch.stride(), batch.device
    if isinstance(batch, dict):
        return type(batch), {name: _form(part) for name, part in batch.items()}
    return type(batch), [_form(part) for part in batch]
