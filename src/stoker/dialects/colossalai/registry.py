"""Registries of the names used in ``dict(type='Name', …)``."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

import torch

from stoker.config import Registry as StokerRegistry

T = TypeVar("T", bound=Callable[..., Any])
_HERE = __name__.rpartition(".")[0]


class Registry(StokerRegistry):
    """A registry that falls back to the names of some libraries."""

    def __init__(self, name: str, third_party_library: Sequence[ModuleType | str] = ()) -> None:
        modules = [m if isinstance(m, str) else m.__name__ for m in third_party_library]
        super().__init__(name, tuple(modules), lambda n, thing: callable(thing) and n[0].isupper())

    def register_module(self, module_class: T, *, force: bool = False) -> T:
        """Register a class under its name; usable as a decorator. ``force`` replaces a name."""
        return self.register(module_class, force=force)

    def get_module(self, module_name: str) -> Callable[..., Any]:
        """Return the class of a name; the error for an unknown name suggests similar ones."""
        return self.get(module_name)

    def has(self, module_name: str) -> bool:
        """Return whether the name is known."""
        return module_name in self


LAYERS = Registry("layer", [torch.nn])
LOSSES = Registry("loss", [torch.nn])
OPTIMIZERS = Registry("optimizer", [torch.optim])
HOOKS = Registry("hook", [f"{_HERE}.trainer.hooks"])
LR_SCHEDULERS = Registry("lr scheduler", [f"{_HERE}.nn.lr_scheduler"])
SCHEDULE = Registry("schedule", [f"{_HERE}.engine.schedule"])
GRADIENT_HANDLER = Registry("gradient handler", [f"{_HERE}.engine.gradient_handler"])
MODELS, DATASETS, TRANSFORMS = Registry("model"), Registry("dataset"), Registry("transform")
DATA_SAMPLERS, OPHOOKS = Registry("data sampler"), Registry("ophook")
DIST_GROUP_INITIALIZER = Registry("dist group initializer")
