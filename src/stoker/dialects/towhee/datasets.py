"""Datasets by name, datasets in Towhee's wrapper, and images with a file of labels."""

import csv
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from stoker.core.errors import did_you_mean

_BY_NAME = {"mnist": "MNIST", "cifar10": "CIFAR10", "fake": "FakeData"}


class TowheeDataSet:
    """A dataset in a wrapper; the trainer reads what is in ``dataset``."""

    framework = "torch"
    dataset: Any = None

    def __len__(self) -> int:
        return len(self.dataset)


class TorchDataSet(TowheeDataSet):
    """A torch dataset in a wrapper."""

    def __init__(self, torchDataSet: Any = None) -> None:  # noqa: N803
        self.dataset = torchDataSet


def unwrapped(dataset: Any) -> Any:
    """Return a dataset without its wrapper."""
    return dataset.dataset if isinstance(dataset, TowheeDataSet) else dataset


def dataset(name: str, *arguments: Any, **options: Any) -> TorchDataSet:
    """Return a dataset of torchvision: "mnist", "cifar10" or "fake"; options are its arguments."""
    if name not in _BY_NAME:
        near = did_you_mean(name, _BY_NAME)
        raise ValueError(f"there is no dataset {name!r}{near} (there is {', '.join(_BY_NAME)})")
    try:
        found = import_module("torchvision.datasets")
    except (ImportError, RuntimeError) as error:  # RuntimeError: built for another torch
        raise ImportError(
            f"dataset({name!r}) needs the package 'torchvision' ({error}): pip install torchvision"
        ) from error
    return TorchDataSet(getattr(found, _BY_NAME[name])(*arguments, **options))


class PyTorchImageDataset(Dataset[tuple[Any, int]]):
    """Images of a folder, with labels from a CSV file of the columns image_name and category.

    Classes are numbered in the order of their first image. A name without a suffix is a ``.jpg``.
    """

    def __init__(
        self,
        image_path: str | Path,
        label_file: str | Path,
        data_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.image_path, self.label_file = image_path, label_file
        self.data_transform = data_transform
        with open(label_file, encoding="utf-8", newline="") as file:
            rows = [(Path(image_path) / row["image_name"], row["category"])
                    for row in csv.DictReader(file)]  # fmt: skip
        self.images = [str(p if p.suffix else p.with_suffix(".jpg")) for p, _ in rows]
        numbers = {name: i for i, name in enumerate(dict.fromkeys(name for _, name in rows))}
        self.labels = [numbers[name] for _, name in rows]
        self.num_classes = len(numbers)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        image: Any = Image.open(self.images[index])
        if self.data_transform is not None:
            image = self.data_transform(image)
        return image, self.labels[index]

    def __len__(self) -> int:
        return len(self.labels)
