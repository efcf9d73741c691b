"""Registries of the names in ``dict(type='Name', …)``, and building objects from such dicts."""

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

import torch

from stoker.config import Registry as StokerRegistry
from stoker.config.check import parameters

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
LR_SCHEDULERS = Registry("lr scheduler", [f"{_HERE}.lr_scheduler"])
SCHEDULE = Registry("schedule", [f"{_HERE}.schedule"])
GRADIENT_HANDLER = Registry("gradient handler", [f"{_HERE}.engine"])
MODELS, DATASETS, TRANSFORMS = Registry("model"), Registry("dataset"), Registry("transform")
DATA_SAMPLERS, OPHOOKS = Registry("data sampler"), Registry("ophook")
DIST_GROUP_INITIALIZER = Registry("dist group initializer")


def build_from_registry(config: Mapping[str, Any], registry: Registry, **supplied: Any) -> Any:
    """Build the object that a dict describes, without changing the dict.

    Args:
        config: The ``type`` and its arguments.
        registry: Where to look up the type.
        supplied: Additional arguments, passed if the type accepts them.
    """
    if not isinstance(config, Mapping) or "type" not in config:
        raise TypeError(f"{config!r} is not a {registry.name}: expected dict(type='Name', …)")
    given = dict(config)
    kind = registry.get_module(given.pop("type"))
    taken = parameters(kind) or {}
    return kind(**{**{name: v for name, v in supplied.items() if name in taken}, **given})


def build_hooks(config: Mapping[str, Any], trainer: Any) -> Any:
    """Build a hook from a dict, and pass it the trainer if it accepts one."""
    return build_from_registry(config, HOOKS, trainer=trainer)
