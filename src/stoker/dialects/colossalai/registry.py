"""Registries of the names in ``dict(type='Name', …)``, and building objects from such dicts."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
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

    get_module, has = StokerRegistry.get, StokerRegistry.__contains__


def _installed(*modules: str) -> list[str]:
    """Return the modules that can be imported; they are imported when a name is looked up."""
    return [name for name in modules if find_spec(name.partition(".")[0]) is not None]


LAYERS = Registry("layer", [torch.nn])
LOSSES = Registry("loss", [torch.nn])
OPTIMIZERS = Registry("optimizer", [torch.optim, f"{_HERE}.nn"])
HOOKS = Registry("hook", [f"{_HERE}.trainer.hooks"])
LR_SCHEDULERS = Registry("lr scheduler", [f"{_HERE}.lr_scheduler"])
SCHEDULE = Registry("schedule", [f"{_HERE}.schedule"])
GRADIENT_HANDLER = Registry("gradient handler", [f"{_HERE}.engine"])
MODELS, DATASETS = Registry("model", _installed("torchvision.models")), Registry("dataset")
TRANSFORMS = Registry("transform", _installed("torchvision.transforms"))
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


def build_lr_scheduler(config: Mapping[str, Any], optimizer: Any, total_steps: Any = None) -> Any:
    """Build a scheduler from a dict; ``total_steps`` counts unless the dict has its own."""
    total = {} if "T_max" in config else {"total_steps": total_steps}
    return build_from_registry(config, LR_SCHEDULERS, optimizer=optimizer, **total)


def build_optimizer(config: Mapping[str, Any], model: Any) -> Any:
    """Build an optimizer of a model's parameters from a dict."""
    return build_from_registry(config, OPTIMIZERS, params=model.parameters())


def build_hooks(config: Mapping[str, Any], trainer: Any) -> Any:
    """Build a hook from a dict, and pass it the trainer if it accepts one."""
    return build_from_registry(config, HOOKS, trainer=trainer)


build_layer = partial(build_from_registry, registry=LAYERS)
build_loss = partial(build_from_registry, registry=LOSSES)
build_model = partial(build_from_registry, registry=MODELS)
build_dataset = partial(build_from_registry, registry=DATASETS)
build_transform = partial(build_from_registry, registry=TRANSFORMS)
build_schedule = partial(build_from_registry, registry=SCHEDULE)
