"""The suite of Colossal-AI's engine and trainer, in the layouts of v0.2 and of later versions."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

SUITE = [
    "tests/test_engine/**/test_*.py",
    "tests/test_trainer/**/test_*.py",
    "tests/test_legacy/test_engine/**/test_*.py",
    "tests/test_legacy/test_trainer/**/test_*.py",
]
PATHS: list[str] = []
NOT_APPLICABLE: dict[str, str] = {
    "tests/test_legacy/test_trainer/test_pipeline/test_pipeline_schedule.py*": (
        "fails in the original: it calls launch() without the config that has its pipeline"
    ),
}


def stand_in() -> None:
    """Stand in for CUDA, torchvision, the original's own test tools and other libraries."""
    import torch

    os.environ.setdefault("DATA", tempfile.gettempdir())
    for kind in (torch.Tensor, torch.nn.Module):
        kind.cuda = lambda self, *_, **__: self  # type: ignore[attr-defined]
    _testing()
    _torchvision()
    _module("colossalai.interface", OptimizerWrapper=type("OptimizerWrapper", (), {}))
    for name in ("custom.simple_mlp", "diffusers", "timm", "torchaudio", "transformers"):
        _module(f"tests.kit.model_zoo.{name}")
    for name in ("albert", "beit", "bert", "gpt2"):  # models that no test here trains
        _module(f"tests.components_to_test.{name}")


def _module(name: str, **names: Any) -> ModuleType:
    """Put a module with these names in place."""
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None, is_package=True)
    made.__path__ = []
    vars(made).update(names)
    sys.modules[name] = made
    return made


def _testing() -> None:
    """Stand in for ``colossalai.testing``, with which the suite starts processes."""
    tools = {tool.__name__: tool for tool in (parameterize, spawn, DummyDataloader)}
    tools |= dict.fromkeys(("rerun_on_exception", "rerun_if_address_is_in_use"), unchanged)
    for module in ("colossalai.testing", "colossalai.testing.utils"):
        _module(module, **tools)


def parameterize(argument: str, values: list[Any]) -> Callable[..., Any]:
    """Call a function once for each value of an argument."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(**given: Any) -> None:
            for value in values:
                function(**{argument: value}, **given)

        return call

    return decorate


def unchanged(*_: Any, **__: Any) -> Callable[[Any], Any]:
    """Return a decorator or a transform that changes nothing."""
    return lambda value: value


def spawn(function: Callable[..., Any], nprocs: int = 1, **given: Any) -> None:
    """Call a function in several processes that know their rank, their number, and a port."""
    import torch.multiprocessing

    from stoker.dialects.colossalai.utils import free_port

    call = partial(function, world_size=nprocs, port=free_port(), **given)
    torch.multiprocessing.spawn(call, nprocs=nprocs)


class DummyDataloader:
    """A loader of generated batches."""

    def __init__(self, data_gen_fn: Callable[[], Any], length: int = 10) -> None:
        self.data_gen_fn, self.length = data_gen_fn, length

    def __iter__(self) -> Iterator[Any]:
        return (self.data_gen_fn() for _ in range(self.length))

    def __len__(self) -> int:
        return self.length


def _torchvision() -> None:
    """Stand in for torchvision by a small residual network and generated images."""
    import torch
    from torch import nn

    class Images(torch.utils.data.Dataset[Any]):
        def __init__(self, *_: Any, train: bool = True, transform: Any = None, **__: Any) -> None:
            self.transform = transform or (lambda image: image)
            self._seed = 0 if train else 1

        def __len__(self) -> int:
            return 128

        def __getitem__(self, index: int) -> tuple[Any, int]:
            draw = torch.Generator().manual_seed(index + len(self) * self._seed)
            return self.transform(torch.rand(3, 32, 32, generator=draw)), index % 10

    def convolve(before: int, after: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU())

    class ResNet(nn.Module):
        def __init__(self, num_classes: int = 1000, **_: Any) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4)
            self.relu, self.maxpool = nn.ReLU(), nn.MaxPool2d(2)
            self.layer1, self.layer2 = convolve(4, 4), convolve(4, 8)
            self.layer3, self.layer4 = convolve(8, 8), convolve(8, 16)
            self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(16, num_classes)

        def forward(self, x: Any) -> Any:
            for part in list(self.children())[:-1]:
                x = part(x)
            return self.fc(x.flatten(1))

    def compose(steps: list[Any]) -> Callable[[Any], Any]:
        def transform(image: Any) -> Any:
            for step in steps:
                image = step(image)
            return image

        return transform

    kinds = ("ToTensor", "Normalize", "Resize", "RandomCrop", "RandomHorizontalFlip", "RandAugment")
    changes = {"Compose": compose, **dict.fromkeys(kinds, unchanged)}
    modes = type("InterpolationMode", (), {"BICUBIC": "bicubic", "BILINEAR": "bilinear"})
    transforms = _module("torchvision.transforms", InterpolationMode=modes, **changes)
    transforms.__dict__["transforms"] = transforms
    datasets = _module("torchvision.datasets", CIFAR10=Images)

    def model(name: str) -> Any:
        if not name.islower() or name.startswith("_"):
            raise AttributeError(name)
        return ResNet

    models = _module("torchvision.models", __getattr__=model)
    _module(
        "torchvision",
        transforms=transforms,
        datasets=datasets,
        models=models,
        __version__="0.15.0",
    )
