"""Short names: ``type: EarlyStopping`` instead of ``_target_: stoker.hooks.EarlyStopping``.

    HOOKS        the hooks of `stoker.hooks`
    OPTIMIZERS   torch.optim
    SCHEDULERS   torch.optim.lr_scheduler, and linear, cosine, polynomial, constant with warm-up
    LOSSES       the losses of torch.nn
    METRICS      `stoker.metrics`, and every class of torchmetrics
    LOADERS      torch's DataLoader, and `stoker.data.pipeline` for streams
    MODELS, STEPS   what you register

Add your own with ``@HOOKS.register``.
"""

import importlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeVar, overload

from stoker.config.lazy import UNKNOWN, Lazy, Section, children, rebuilt
from stoker.config.resolve import has_references
from stoker.core.errors import StokerError, did_you_mean
from stoker.core.foreign_words import class_of

T = TypeVar("T", bound=Callable[..., Any])


class RegistryError(StokerError, KeyError):
    """A short name that is unknown or already registered."""

    def __str__(self) -> str:
        return str(self.args[0])


class Registry:
    """Classes and functions by short name: those you register, then those of some modules.

    Args:
        name: what it contains, for messages: "hook".
        modules: dotted names of modules whose public names are included; imported when needed.
        keep: selects among their public names.
    """

    def __init__(
        self,
        name: str,
        modules: tuple[str, ...] = (),
        keep: Callable[[str, Any], bool] | None = None,
    ) -> None:
        self.name = name
        self._modules = modules
        self._keep = keep or (lambda _, thing: isinstance(thing, type))
        self._registered: dict[str, Callable[..., Any]] = {}

    @overload
    def register(self, thing: T, /, *, name: str | None = ..., force: bool = ...) -> T: ...
    @overload
    def register(
        self, thing: None = None, /, *, name: str | None = ..., force: bool = ...
    ) -> Callable[[T], T]: ...
    def register(
        self, thing: T | None = None, /, *, name: str | None = None, force: bool = False
    ) -> T | Callable[[T], T]:
        """Register a class or function under its own name, or under ``name``.

        Raises:
            RegistryError: the name is taken; ``force=True`` replaces it.
        """

        def put(what: T) -> T:
            key = name or what.__name__
            if not force and (key in self._registered or self._found(key) is not None):
                raise RegistryError(
                    f"the {self.name} {key!r} is already registered, as {self.get(key)!r}: choose "
                    "another name, or register it with force=True"
                )
            self._registered[key] = what
            return what

        return put if thing is None else put(thing)

    def get(self, name: str) -> Callable[..., Any]:
        """Return the class or function with a short name.

        Raises:
            RegistryError: it is unknown; the message suggests similar names.
        """
        if name in self._registered:
            return self._registered[name]
        found = self._found(name)
        if found is None:
            ours = class_of(name)
            near = f"; use {ours}" if ours and self.name == "hook" else did_you_mean(name, self)
            raise RegistryError(f"there is no {self.name} {name!r} in the registry{near}")
        return found

    def is_registered(self, name: str) -> bool:
        """Return whether a name was registered, and is not only one of the modules."""
        return name in self._registered

    def __contains__(self, name: str) -> bool:
        return name in self._registered or self._found(name) is not None

    def __iter__(self) -> Iterator[str]:
        """Iterate over all names, sorted."""
        found: set[str] = set(self._registered)
        for module in self._modules:
            found |= set(_public(module, self._keep))
        return iter(sorted(found))

    def _found(self, name: str) -> Callable[..., Any] | None:
        for module in self._modules:
            if name in _public(module, self._keep):
                thing: Callable[..., Any] = getattr(importlib.import_module(module), name)
                return thing
        return None


@cache
def _public(module: str, keep: Callable[[str, Any], bool]) -> tuple[str, ...]:
    found = vars(importlib.import_module(module))
    return tuple(n for n, thing in found.items() if not n.startswith("_") and keep(n, thing))


def _is_loss(name: str, thing: Any) -> bool:
    return isinstance(thing, type) and name.endswith("Loss")


def _is_optimizer(name: str, thing: Any) -> bool:
    return isinstance(thing, type) and name != "Optimizer"


def _is_scheduler(name: str, thing: Any) -> bool:
    warm = name in ("linear", "cosine", "polynomial", "constant")
    return warm or (isinstance(thing, type) and name.endswith(("LR", "Restarts")))


def _is_hook(name: str, thing: Any) -> bool:
    return isinstance(thing, type) and name not in ("Hook", "Periodic", "Priority", "JsonLines")


HOOKS = Registry("hook", ("stoker.hooks",), _is_hook)
OPTIMIZERS = Registry("optimizer", ("torch.optim",), _is_optimizer)
SCHEDULERS = Registry("scheduler", ("stoker.nn.lr", "torch.optim.lr_scheduler"), _is_scheduler)
LOSSES = Registry("loss", ("torch.nn",), _is_loss)
METRICS = Registry(
    "metric",
    ("stoker.metrics", "torchmetrics", "torchmetrics.classification", "torchmetrics.regression"),
)
MODELS = Registry("model")
STEPS = Registry("step")
LOADERS = Registry(
    "loader",
    ("torch.utils.data", "stoker.data"),
    lambda name, _: name in ("DataLoader", "pipeline"),
)

BY_KEY: dict[str, Registry] = {
    "model": MODELS,
    "optimizer": OPTIMIZERS,
    "criterion": LOSSES,
    "lr_scheduler": SCHEDULERS,
    "step": STEPS,
    "hooks": HOOKS,
    "train_loader": LOADERS,
    "val_loader": LOADERS,
    "predict_loader": LOADERS,
}
"""The registry for short names below each config key."""


def registry_at(path: list[str]) -> Registry | None:
    """Return the registry for short names at a path, or None."""
    depth = len(path) - (path[0] in ("hooks", "optimizer", "lr_scheduler", "val_loader"))
    if path[0] == "hooks" and depth > 1:
        return METRICS
    return BY_KEY.get(path[0]) if depth in (0, 1) else None


def expanded(tree: Section, faults: list[str]) -> Section:
    """Return a copy of a tree with nodes for short names; append unknown names to ``faults``."""
    copy = Section(where=tree.where)
    copy.origins = dict(tree.origins)
    seen: dict[int, Any] = {}
    for key, value in tree.items():
        copy[key] = _expanded(value, [key], tree.origin(key), faults, seen)
    return copy


def _expanded(
    value: Any,
    path: list[str],
    place: str,
    faults: list[str],
    seen: dict[int, Any],
    in_a_group: bool = False,
) -> Any:
    if isinstance(value, dict | list | tuple):
        if id(value) not in seen:
            place = getattr(value, "where", "") or place
            seen[id(value)] = _container(value, path, place, faults, seen)
        return seen[id(value)]
    at_top = len(path) == 1 or (len(path) == 2 and in_a_group)
    registry = registry_at(path)
    if isinstance(value, str) and not has_references(value) and at_top and registry:
        return _node(value, {}, registry, place, faults)
    return value


def _container(
    value: Any, path: list[str], place: str, faults: list[str], seen: dict[int, Any]
) -> Any:
    below = iter([[*path, str(key)] for key, _ in children(value)])
    one_call = isinstance(value, Lazy) or (isinstance(value, dict) and "type" in value)
    expanded_value = rebuilt(
        value, lambda item: _expanded(item, next(below), place, faults, seen, not one_call)
    )
    registry = registry_at(path)
    if (
        registry is None
        or not isinstance(expanded_value, Section)
        or isinstance(expanded_value, Lazy)
    ):
        return expanded_value
    if not isinstance(expanded_value.get("type"), str):
        return expanded_value
    arguments = {key: item for key, item in expanded_value.items() if key not in ("type", "_args_")}
    node = _node(expanded_value["type"], arguments, registry, place, faults)
    if isinstance(node, Lazy):
        node.origins = expanded_value.origins
        node.args = expanded_value.get("_args_", [])
    return node


def _node(
    name: str, arguments: dict[str, Any], registry: Registry, place: str, faults: list[str]
) -> Any:
    try:
        return Lazy(registry.get(name), kwargs=arguments, where=place)
    except RegistryError as error:
        faults.append(f"{place}: {error}")
        return UNKNOWN
