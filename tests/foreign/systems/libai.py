"""The suite of LiBai: configs, schedules, parameter groups, files, samples, and a trainer script.

OneFlow is stood in for by torch, which has the same names. LiBai's own models, layers, tokenizers
and datasets, and flowvision's transforms, are classes that only remember their arguments.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

SUITE = [
    "tests/config/test_*.py",
    "tests/data/test_*.py",
    "tests/structures/test_*.py",
    "tests/test_file_io.py",
    "tests/test_optim.py",
    "tests/test_scheduler.py",
    "libai_checkout.py",
]
PATHS: list[str] = []
NOT_APPLICABLE: dict[str, str] = {
    "tests/structures/test_metadata.py::TestMetadata::test_to_global": (
        "compares the placement of OneFlow's global tensors, which torch does not have"
    ),
    "tests/data/test_sampler.py::*::test_cyclic_sampler_resume_multi_rank": (
        "resumes after samples of one rank; LiBai's trainer and sampler count those of all ranks"
    ),
}

_STUBS = (
    "flowvision",
    "libai.data.data_utils",
    "libai.data.datasets",
    "libai.inference",
    "libai.layers",
    *(f"libai.models.{name}_model" for name in ("bert", "gpt", "roberta", "t5")),
    "libai.models.vision_transformer",
    *(f"libai.tokenizer.tokenization_{name}" for name in ("base", "bert", "gpt2", "roberta", "t5")),
)
"""Modules of which every name is a class that only remembers its arguments."""


def stand_in() -> None:
    """Put torch in the place of OneFlow, and such classes in that of models and transforms."""
    import torch
    from libai import models

    sys.meta_path.insert(0, _Finder())
    models.__getattr__ = _stubs_in("libai.models")
    torch.nn.Module.to_global = lambda self, *args, **kwargs: self


class _Finder(MetaPathFinder):
    """Finds OneFlow's modules in torch, and those that have stubs."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if f"{name}.".startswith("oneflow."):
            return ModuleSpec(name, _Module(_torch_in), is_package=True)
        if f"{name}.".startswith(tuple(f"{one}." for one in _STUBS)):
            return ModuleSpec(name, _Module(_stubs_in), is_package=True)
        return None


class _Module(Loader):
    """A module whose names are looked up when they are used."""

    def __init__(self, lookup: Callable[[str], Callable[[str], Any]]) -> None:
        self._lookup = lookup

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__getattr__"] = self._lookup(module.__name__)


def _stubs_in(module: str) -> Callable[[str], Any]:
    @cache
    def stub(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith(("_MEAN", "_STD")):
            return (0.5, 0.5, 0.5)  # the mean or deviation of a dataset's channels
        return _Anything(name, (_Stub,), {"__module__": module})

    return stub


class _Anything(type):
    """A class that has any attribute: a module as well, or an enumeration."""

    def __getattr__(cls, name: str) -> Any:
        return _stubs_in(f"{cls.__module__}.{cls.__name__}")(name)


class _Stub:
    """A model, dataset, tokenizer or transform that only remembers its arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs


def _torch_in(module: str) -> Callable[[str], Any]:
    """Return what looks up the names of a module of OneFlow in that of torch."""
    names = _DIFFERENT.get(module, {})
    try:
        home: Any = import_module("torch" + module.removeprefix("oneflow"))
    except ImportError:
        home = None

    def find(name: str) -> Any:
        if name in names:
            return names[name]
        if f"{module}.{name}" in _DIFFERENT:
            return import_module(f"{module}.{name}")
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(home, name)
        return import_module(f"{module}.{name}") if isinstance(found, ModuleType) else found

    return find


def _without_placement(name: str) -> Callable[..., Any]:
    """Return a function of torch that takes, and drops, the placement of a global tensor."""

    def make(*args: Any, sbp: Any = None, placement: Any = None, **kwargs: Any) -> Any:
        return getattr(import_module("torch"), name)(*args, **kwargs)

    return make


class _Graph:
    """OneFlow's graph: ``build`` runs eagerly, and the trainer updates."""

    def __init__(self) -> None:
        self.config: Any = _Config()

    def add_optimizer(self, optimizer: Any, lr_sch: Any = None) -> None:
        self.optimizer = optimizer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.build(*args, **kwargs)


class _Config:
    """Takes any setting of a graph."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


_DIFFERENT: dict[str, dict[str, Any]] = {
    "oneflow": {
        **{name: _without_placement(name) for name in ("ones", "rand", "randn", "zeros")},
        "placement": lambda *args: None,
    },
    "oneflow.cuda": {"is_available": lambda: True},
    "oneflow.mock_torch": {"enable": lambda lazy: nullcontext()},  # torch is OneFlow already
    "oneflow.env": {"get_rank": lambda: 0, "all_device_placement": lambda device: None},
    "oneflow.nn": {"Graph": _Graph},
    "oneflow.optim": {"LAMB": _stubs_in("oneflow.optim")("LAMB")},
    "oneflow.sbp": {"broadcast": None, "split": lambda dim: None},
}
"""What torch has not, or spells in another way."""
