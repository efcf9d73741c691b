"""The suite of Towhee's trainer, with small substitutes for torchvision."""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

SUITE = ["tests/unittests/trainer/test_*.py"]
PATHS: list[str] = []
NOT_APPLICABLE: dict[str, str] = {}


def stand_in() -> None:
    """Replace torchvision, which has no build for this torch, if it is missing."""
    for name in ("engine", "engine.engine", "hub", "hub.file_manager"):
        sys.modules[f"towhee.{name}"] = MagicMock()  # pipelines, which older suites set up
    if find_spec("torchvision") is not None:
        return
    names = ("torchvision", "torchvision.models", "torchvision.transforms", "torchvision.datasets")
    root, models, transforms, datasets = (ModuleType(name) for name in names)
    sys.modules |= dict(zip(names, (root, models, transforms, datasets), strict=True))
    for module in (root, models, transforms, datasets):
        module.__spec__ = ModuleSpec(module.__name__, None)
    root.__dict__.update(models=models, transforms=transforms, datasets=datasets)
    models.__getattr__ = _model  # type: ignore[method-assign]
    transforms.__getattr__ = _transform  # type: ignore[method-assign]
    datasets.__getattr__ = _dataset  # type: ignore[method-assign]


def _model(name: str) -> Any:
    """Return a small convnet with the outer layers of a ResNet, for every name of one."""
    if not name.startswith("res"):
        raise AttributeError(name)
    from torch import nn

    class ResNet(nn.Module):
        def __init__(self, pretrained: bool = False, num_classes: int = 1000) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, 8, 7, stride=8)
            self.bn1 = nn.BatchNorm2d(8)
            self.layer1 = nn.Conv2d(8, 16, 3)
            self.avgpool = nn.AdaptiveAvgPool2d(1)
            self.fc = nn.Linear(16, num_classes)

        def forward(self, images: Any) -> Any:
            hidden = self.layer1(self.bn1(self.conv1(images)).relu()).relu()
            return self.fc(self.avgpool(hidden).flatten(1))

    return ResNet


def _transform(name: str) -> Any:
    import torch
    from PIL import ImageOps

    class Compose:
        def __init__(self, transforms: list[Any]) -> None:
            self.transforms = transforms

        def __call__(self, image: Any) -> Any:
            for one in self.transforms:
                image = one(image)
            return image

    class Normalize:
        def __init__(self, mean: Any, std: Any) -> None:
            self.mean, self.std = (torch.tensor(v).view(-1, 1, 1) for v in (mean, std))

        def __call__(self, image: Any) -> Any:
            return (image - self.mean) / self.std

    class Fit:
        def __init__(self, size: int = 224, **_: Any) -> None:
            self.size = size

        def __call__(self, image: Any) -> Any:
            return ImageOps.fit(image, (self.size, self.size))

    class Flip:
        def __init__(self, p: float = 0.5) -> None:
            self.p = p

        def __call__(self, image: Any) -> Any:
            flipped = torch.rand(()) < self.p
            if isinstance(image, torch.Tensor):
                return image.flip(-1) if flipped else image
            return ImageOps.mirror(image) if flipped else image

    class ToTensor:
        def __call__(self, image: Any) -> Any:
            import numpy as np

            pixels = torch.tensor(np.array(image)) / 255
            return pixels.permute(2, 0, 1) if pixels.ndim == 3 else pixels.unsqueeze(0)

    class Lambda:
        def __init__(self, function: Any) -> None:
            self.function = function

        def __call__(self, value: Any) -> Any:
            return self.function(value)

    known = {
        "Compose": Compose, "Normalize": Normalize, "Resize": Fit, "CenterCrop": Fit,
        "RandomResizedCrop": Fit, "RandomHorizontalFlip": Flip, "ToTensor": ToTensor,
        "Lambda": Lambda,
    }  # fmt: skip
    if name not in known:
        raise AttributeError(name)
    return known[name]


def _dataset(name: str) -> Any:
    """Return datasets of random images, for every name."""
    from PIL import Image
    from torch.utils.data import Dataset

    class Random(Dataset):  # type: ignore[type-arg]
        def __init__(self, *_: Any, size: int = 8, transform: Any = None, **__: Any) -> None:
            self.size, self.transform = size, transform

        def __len__(self) -> int:
            return self.size

        def __getitem__(self, index: int) -> tuple[Any, int]:
            if index >= self.size:
                raise IndexError(index)
            image = Image.effect_noise((32, 32), 50 + index)
            image = image if name == "MNIST" else image.convert("RGB")
            return (self.transform(image) if self.transform else image), index % 10

    if name.startswith("_"):
        raise AttributeError(name)
    return Random
