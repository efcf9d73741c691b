"""Samples with named fields, samplers that know their rank, and loaders of both."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from typing import Any

import torch
from omegaconf import ListConfig
from torch import Tensor
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Sampler

from stoker.dialects.libai.config import LazyCall, instantiate
from stoker.dialects.libai.distributed import get_data_parallel_rank, get_data_parallel_size


@dataclass
class DistTensorData:
    """A tensor of a sample; the placement that OneFlow needs is not used."""

    tensor: Tensor
    sbp_list: list[str] = field(default_factory=lambda: ["split_0", "broadcast"])
    placement_idx: int = 0

    def to_global(self, sbp: Any = None, placement: Any = None, device_type: Any = None) -> None:
        """Do nothing: the engine places a batch."""

    @staticmethod
    def stack(distTensor_lists: Sequence["DistTensorData"]) -> "DistTensorData":  # noqa: N803
        """Stack the tensors of several samples of one shape."""
        first = distTensor_lists[0]
        for one in distTensor_lists:
            if not isinstance(one.tensor, Tensor):
                raise TypeError(
                    f"DistTensorData.tensor is a {type(one.tensor).__name__}, expected a tensor: "
                    "check what __getitem__ of the dataset returns"
                )
            if one._kind() != first._kind():
                raise ValueError(f"samples differ: {one._kind()} and {first._kind()}")
        return replace(first, tensor=torch.stack([one.tensor for one in distTensor_lists]))

    def _kind(self) -> tuple[Any, ...]:
        return self.tensor.shape, self.sbp_list, self.placement_idx


@dataclass(init=False, repr=False, eq=False)
class Instance:
    """A sample or a batch: its fields are attributes, in the order in which they were set.

    It is a dataclass for the sake of `stoker.core.tree`, which counts and moves its tensors.
    """

    _fields: dict[str, Any]

    def __init__(self, **kwargs: Any) -> None:
        self._fields = kwargs.pop("_fields", None) or dict(kwargs)

    def __setattr__(self, name: str, val: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, val)
        else:
            self.set(name, val)

    def __getattr__(self, name: str) -> Any:
        if name == "_fields" or name not in self._fields:
            raise AttributeError(f"the instance has no field {name!r}")
        return self._fields[name]

    def set(self, name: str, value: Any) -> None:
        """Set a field."""
        self._fields[name] = value

    def has(self, name: str) -> bool:
        """Return whether there is such a field."""
        return name in self._fields

    def remove(self, name: str) -> None:
        """Remove a field."""
        del self._fields[name]

    def get(self, name: str) -> Any:
        """Return a field."""
        return self._fields[name]

    def get_fields(self) -> dict[str, Any]:
        """Return all fields."""
        return self._fields

    def __len__(self) -> int:
        return len(self._fields)

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError("an Instance cannot be iterated: use get_fields()")

    @staticmethod
    def stack(instance_lists: Sequence["Instance"]) -> "Instance":
        """Return a batch: tensors are stacked, lists stay lists, others have a ``stack``."""
        names = instance_lists[0].get_fields()
        return Instance(**{name: _stacked([i.get(name) for i in instance_lists]) for name in names})

    def __repr__(self) -> str:
        return f"Instance(fields=[{', '.join(f'{k}: {v}' for k, v in self._fields.items())}])"


def _stacked(values: list[Any]) -> Any:
    kind: Any = type(values[0])
    if issubclass(kind, list):
        return values
    if not issubclass(kind, Tensor) and not hasattr(kind, "stack"):
        raise ValueError(f"fields of type {kind.__name__} cannot be stacked to a batch")
    return torch.stack(values) if issubclass(kind, Tensor) else kind.stack(values)


class CyclicSampler(Sampler[list[int]]):
    """Batches of indices without end; each pass has another order if ``shuffle`` is set.

    Each rank reads a part of the data of its own. ``consumed_samples`` are those of all ranks.
    """

    def __init__(
        self,
        dataset: Any,
        micro_batch_size: int,
        shuffle: bool = False,
        consumed_samples: int = 0,
        data_parallel_rank: int = 0,
        data_parallel_size: int = 1,
        seed: int = 0,
    ) -> None:
        self.micro_batch_size, self.shuffle, self.seed = micro_batch_size, shuffle, seed
        self.data_parallel_rank, self.consumed_samples = data_parallel_rank, consumed_samples
        self.num_replicas = data_parallel_size  # by which Stoker knows that it is sharded
        batches = len(dataset) // (micro_batch_size * data_parallel_size)
        if not batches:
            raise ValueError(
                f"the dataset has {len(dataset)} samples, fewer than one batch of "
                f"{micro_batch_size} on each of {data_parallel_size} ranks"
            )
        self.data_size_per_epoch = batches * micro_batch_size

    def __iter__(self) -> Iterator[list[int]]:
        size = self.data_size_per_epoch
        epoch, start = divmod(self.consumed_samples // self.num_replicas, size)
        passes = (_order(size, self.shuffle, self.seed + at) for at in count(epoch))
        indices = islice(chain.from_iterable(passes), start, None)
        first = self.data_parallel_rank * size
        while True:
            yield [first + index for index in islice(indices, self.micro_batch_size)]

    def set_consumed_samples(self, consumed_samples: int) -> None:
        """Start after this many samples."""
        self.consumed_samples = consumed_samples


class SingleRoundSampler(Sampler[list[int]]):
    """Batches of indices for one pass over the part of the data that a rank reads.

    Unless ``drop_last`` is set, a rank whose part is smaller repeats index 0 at the end, so that
    all ranks have equally many samples.
    """

    def __init__(
        self,
        dataset: Any,
        micro_batch_size: int,
        shuffle: bool = False,
        data_parallel_rank: int = 0,
        data_parallel_size: int = 1,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.data_size, self.drop_last = len(dataset), drop_last
        self.micro_batch_size, self.shuffle, self.seed = micro_batch_size, shuffle, seed
        self.data_parallel_rank, self.data_parallel_size = data_parallel_rank, data_parallel_size

    def __iter__(self) -> Iterator[list[int]]:
        size, larger = divmod(self.data_size, self.data_parallel_size)
        rank = self.data_parallel_rank
        first = rank * size + min(rank, larger)
        order = _order(size + (rank < larger), self.shuffle, self.seed)
        indices = [first + index for index in order]
        if larger and rank >= larger and not self.drop_last:
            indices.append(0)
        yield from BatchSampler(indices, self.micro_batch_size, self.drop_last)

    def __len__(self) -> int:
        samples = self.micro_batch_size * self.data_parallel_size
        return self.data_size // samples if self.drop_last else -(-self.data_size // samples)


def _order(size: int, shuffle: bool, seed: int) -> list[int]:
    if not shuffle:
        return list(range(size))
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randperm(size, generator=generator).tolist())


def trivial_batch_collator(batch: Sequence[Any]) -> Any:
    """Stack `Instance` samples to a batch."""
    if not isinstance(batch[0], Instance):
        raise TypeError(
            f"the dataset returned a {type(batch[0]).__name__}, expected an Instance: return one, "
            "or pass collate_fn"
        )
    return Instance.stack(batch)


def _loader(
    dataset: Any, sampler: Any, draws: dict[str, Any], workers: int, collate_fn: Any, **kwargs: Any
) -> Any:
    """Return a loader whose sampler, a node, draws batches as ``draws`` says."""
    return DataLoader(
        dataset,
        batch_sampler=instantiate(sampler, dataset=dataset, **draws),
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=collate_fn or trivial_batch_collator,
        **kwargs,
    )


def build_image_train_loader(
    dataset: Any,
    train_batch_size: int,
    test_batch_size: int | None = None,
    sampler: Any = None,
    num_workers: int = 4,
    consumed_samples: int = 0,
    seed: int = 0,
    collate_fn: Any = None,
    dataset_mixer: Callable[[list[Any]], Any] = ConcatDataset,
    mixup_func: Any = None,
    **kwargs: Any,
) -> tuple[Any, None, None]:
    """Return a loader that reads the data again and again, and None for validation and test.

    ``dataset`` is a dataset, a node, or a list of them, which ``dataset_mixer`` joins. ``sampler``
    is a node, `CyclicSampler` by default. ``mixup_func``, a node or a function, is applied to
    images and labels by `get_batch`. ``test_batch_size`` is not used; other arguments are those of
    a `torch.utils.data.DataLoader`.
    """
    data = instantiate(dataset)
    if isinstance(data, list):
        data = dataset_mixer(data) if len(data) > 1 else data[0]
    draws = {
        "micro_batch_size": train_batch_size,
        "consumed_samples": consumed_samples,
        "data_parallel_rank": get_data_parallel_rank(),
        "data_parallel_size": get_data_parallel_size(),
        "seed": seed,
    }
    node = LazyCall(CyclicSampler)(shuffle=True) if sampler is None else sampler
    loader = _loader(data, node, draws, num_workers, collate_fn, **kwargs)
    loader.mixup_func = instantiate(mixup_func)
    return loader, None, None


build_nlp_train_loader = build_image_train_loader


def build_image_test_loader(
    dataset: Any,
    test_batch_size: int,
    sampler: Any = None,
    num_workers: int = 4,
    seed: int = 0,
    collate_fn: Any = None,
    **kwargs: Any,
) -> Any:
    """Return a loader that reads the data once; Stoker divides it between the ranks.

    ``sampler`` is a node, `SingleRoundSampler` by default.
    """
    node = LazyCall(SingleRoundSampler)() if sampler is None else sampler
    ranks = {"data_parallel_rank": 0, "data_parallel_size": 1}
    draws = {"micro_batch_size": test_batch_size, **ranks, "seed": seed}
    return _loader(instantiate(dataset), node, draws, num_workers, collate_fn, **kwargs)


build_nlp_test_loader = build_image_test_loader


def build_nlp_train_val_test_loader(
    dataset: Any,
    splits: Sequence[Sequence[float]],
    weights: Sequence[float],
    train_val_test_num_samples: Sequence[int],
    train_batch_size: int,
    test_batch_size: int,
    train_sampler: Any = None,
    test_sampler: Any = None,
    consumed_samples: int = 0,
    dataset_mixer: Callable[[list[Any]], Any] = ConcatDataset,
    **options: Any,
) -> tuple[Any, Any, Any]:
    """Split the documents of text datasets in three, and return a loader for each part.

    ``dataset`` is a node or a list of them. Its ``indexed_dataset`` has the documents, of which
    ``splits`` gives the shares of training, validation and test; its ``max_num_samples`` becomes
    the one of each part in ``train_val_test_num_samples``. ``weights`` are not used, as in LiBai;
    ``options`` are those of `build_image_train_loader`.
    """
    nodes = list(dataset) if isinstance(dataset, list | ListConfig) else [dataset]
    if not len(nodes) == len(splits) == len(weights):
        raise ValueError(
            f"there are {len(nodes)} datasets, {len(splits)} splits and {len(weights)} weights, "
            "expected equally many"
        )
    limits = train_val_test_num_samples
    parts = [_parts_of(one, shares, limits) for one, shares in zip(nodes, splits, strict=True)]
    train, *others = (dataset_mixer(list(part)) for part in zip(*parts, strict=True))
    drawn = {"sampler": train_sampler, "consumed_samples": consumed_samples}
    loader, *_ = build_image_train_loader(train, train_batch_size, **drawn, **options)
    options["sampler"] = test_sampler
    valid, test = (build_image_test_loader(one, test_batch_size, **options) for one in others)
    return loader, valid, test


def _parts_of(node: Any, shares: Sequence[float], limits: Sequence[int]) -> list[Any]:
    """Build a dataset three times, each time with other documents."""
    indexed = instantiate(node.indexed_dataset)
    documents, found = indexed.get_doc_idx(), []
    size, total = len(documents) - 1, sum(shares)
    ends = [round(sum(shares[:count]) / total * size) for count in range(4)]
    for start, end, limit in zip(ends, ends[1:], limits, strict=False):
        indexed.set_doc_idx(documents[start : end + 1])
        found.append(instantiate(node, indexed_dataset=indexed, max_num_samples=limit))
    indexed.set_doc_idx(documents)
    return found
