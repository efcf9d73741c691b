"""Search objects for values: attributes, closures, and the global variables of their functions.

No code of the user runs: attributes are read from ``__dict__`` and ``__slots__``, functions as
bytecode. The search is bounded in depth and in size.
"""

import functools
import gc
import itertools
import random
import threading
import weakref
from argparse import Namespace
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from inspect import getmro
from queue import Queue
from types import (
    CellType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stoker.core.batch_list import leaves_of
from stoker.core.bytecode import as_function, facts_of, is_library, reading_functions
from stoker.core.library_values import CACHES, IMMUTABLE, is_library_value
from stoker.core.tree import CONTAINERS, is_container, is_sharded

Place: TypeAlias = tuple[str, Any]
"""Where a value is: the path of the object that holds it, and its name, key or index there."""

SCALARS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
SCALAR_TYPES = frozenset(SCALARS)  # far quicker to ask than isinstance
RNGS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
ARRAYS = (Tensor, np.ndarray)
ITERATORS: tuple[type, ...] = (
    GeneratorType,
    itertools.count,
    itertools.cycle,
    itertools.chain,
    itertools.islice,
    map,
    filter,
    zip,
    enumerate,
    *map(type, (iter([]), iter(()), iter({}), iter(range(0)), iter(set[int]()), iter(""))),
    torch.utils.data.dataloader._BaseDataLoaderIter,
    torch.optim.Optimizer,
)
"""Types with a state that cannot be saved from outside: they advance when they are used."""

_VALUES = (*SCALARS, *RNGS, *CONTAINERS, *ITERATORS, np.generic, Enum)
_ROOT_VALUES = (*SCALARS, *RNGS, *ARRAYS, *ITERATORS)
_FIXED = (*SCALARS, *IMMUTABLE)

MAX_ITEMS = 10_000
"""Containers with more items are compared by a sample."""

_LEAVES = (*SCALARS, *RNGS, *ITERATORS, np.generic, Enum)
_MAX_DEPTH = 24
MAX_VALUES = 30_000
_MAX_OBJECTS = 1000
"""How many objects of a list or dict are searched."""

_PROXIES = (MappingProxyType, *weakref.ProxyTypes)
_OPEN_CLASSES = (
    *(SimpleNamespace, Namespace, UserDict, UserList, ChainMap, Queue, threading.local),
    *(weakref.WeakKeyDictionary, weakref.WeakValueDictionary),
)
_SEARCHED = (FunctionType, MethodType, functools.partial, nn.Module, DataLoader, type, ModuleType)
_COMPONENTS = ("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn", "generator")
_LOADER_NAMES = frozenset(
    vars(DataLoader(TensorDataset())).keys() | {"by_sample", "_iterator", "next_iter_state"}
)
_MODULE_NAMES = frozenset(vars(nn.Module()).keys() - {"training"})
_HOOKS: dict[type, tuple[str, ...]] = {
    nn.Module: ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    Tensor: ("_backward_hooks", "_post_accumulate_grad_hooks"),
    torch.optim.Optimizer: ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),
}
OF_OPTIMIZER = frozenset(
    [
        *("defaults", "param_groups", "state", "step", "zero_grad", "_opt_called"),
        *("_step_supports_amp_scaling", "_need_device_dtype_check_for_fused"),
        *("_warned_capturable_if_run_uncaptured", "_zero_grad_profile_name"),
        *(
            f"_optimizer_{kind}_{when}_hooks"
            for kind in ("step", "state_dict", "load_state_dict")
            for when in ("pre", "post")
        ),
    ]
)
"""The attributes that torch itself gives an optimizer."""

SAVED_ROOTS = ("model", "criterion")
"""Roots whose parameters and buffers are part of every checkpoint."""

_OF_THE_PROCESS = frozenset({"pid", "_pid", "fd", "_fd", "port", "_port", "fileno", "_fileno"})
"""Attributes that describe the process, and mean nothing in another one."""


@dataclass
class Found:
    """What a search found.

    Args:
        owners: the objects that hold values, by path.
        values: the values, by place.
        functions: the functions that user code runs, by path.
        complete: whether nothing was left out because there was too much.
    """

    owners: dict[str, Any] = field(default_factory=dict)
    values: dict[Place, Any] = field(default_factory=dict)
    functions: dict[str, FunctionType] = field(default_factory=dict)
    complete: bool = True


class ValuesByPosition:
    """The values of a dict whose keys a checkpoint cannot hold, such as parameters."""

    def __init__(self, owner: dict[Any, Any]) -> None:
        self._owner = owner

    def __setitem__(self, position: int, value: Any) -> None:
        dict.__setitem__(self._owner, list(self._owner)[position], value)


def search(roots: Iterable[tuple[str, Any]], ignore: Iterable[Any] = ()) -> Found:
    """Return what is reachable from objects given by name; objects in ``ignore`` are left out."""
    searcher = _Searcher({id(one) for one in ignore})
    for name, root in roots:
        searcher.root(name, root)
    return searcher.found


def name_of(place: Place) -> str:
    """Return the name of a place for messages: ``dataset.transform.rng``."""
    owner, key = place
    if key is None:
        return owner
    return f"{owner}.{key}" if isinstance(key, str) else f"{owner}[{key!r}]"


class _Searcher:
    def __init__(self, seen: set[int]) -> None:
        self.found = Found()
        self._seen = seen
        self._is_saved = False  # whether the parameters of modules are saved by others

    def root(self, name: str, value: Any) -> None:
        self._is_saved = name in SAVED_ROOTS
        holder = [value]  # so that a root that is a plain container is found as well
        self.found.owners[name] = holder
        if isinstance(value, torch.optim.Optimizer):
            self._optimizer(name, value)
        elif is_container(value) or isinstance(value, _ROOT_VALUES):
            self._visit(name, 0, value, name, _MAX_DEPTH)
        else:
            self._search(name, value, _MAX_DEPTH)

    def _visit(self, owner: str, key: Any, value: Any, path: str, depth: int) -> None:
        """Record a value, or search the object that it is."""
        found = self.found
        if type(value) in SCALAR_TYPES:
            found.values[owner, key] = value
        elif type(value) in _PROXIES:
            self._visit(owner, key, _behind(value), path, depth)
        elif id(value) in self._seen:
            return
        elif len(found.values) > MAX_VALUES or depth == 0:
            found.complete = found.complete and not depth
        elif isinstance(value, _LEAVES) or _is_array(value):
            self._seen.add(id(value))
            found.values[owner, key] = value
        elif is_container(value):
            self._container(owner, key, value, path, depth)
        else:
            if isinstance(value, CACHES) or is_opaque(value):
                found.values[owner, key] = value
            self._search(path, value, depth)

    def _container(self, owner: str, key: Any, value: Any, path: str, depth: int) -> None:
        self._seen.add(id(value))
        self.found.values[owner, key] = value
        if is_plain(value):
            return
        self.found.owners[path] = value
        items: Iterable[tuple[Any, Any]] = enumerate(value)
        if isinstance(value, dict):
            items = dict.items(value)
            first = itertools.islice(dict.keys(value), _MAX_OBJECTS)
            if not all(isinstance(key, str | int) for key in first):
                self.found.owners[path] = ValuesByPosition(value)
                items = enumerate(dict.values(value))
        is_fixed = not isinstance(value, dict | list | deque)
        for index, item in itertools.islice(items, _MAX_OBJECTS):
            if not (is_fixed and isinstance(item, _FIXED)):
                self._visit(path, index, item, f"{path}[{index!r}]", depth - 1)

    def _search(self, path: str, value: Any, depth: int) -> None:
        """Search what an object holds and what its functions use."""
        if id(value) in self._seen or isinstance(value, ModuleType):
            return
        self._seen.add(id(value))
        if (searcher := _searcher_for(type(value))) is not None:  # type: ignore[arg-type]
            searcher(self, path, value, depth)
        elif isinstance(value, type):
            self._class(value, depth)
        elif isinstance(value, weakref.ref):
            self._search(path, value(), depth)
        elif (function := as_function(value)) is not None:
            self._search(path, function, depth)
        else:
            held = attributes(value)
            is_open = not is_library(type(value).__module__) or _is_open(type(value))
            held = held if is_open else _held_by_library(value, held)
            if is_open or held:
                self._object(path, value, held, depth)

    def _method(self, path: str, method: Any, depth: int) -> None:
        self._search(path, method.__self__, depth)
        self._search(path, method.__func__, depth)

    def _partial(self, path: str, partial: Any, depth: int) -> None:
        for name in ("func", "args", "keywords"):
            self._visit(path, name, getattr(partial, name), f"{path}.{name}", depth - 1)

    def _object(self, path: str, value: Any, held: Mapping[str, Any], depth: int) -> None:
        self.found.owners[path] = value
        for name, item in held.items():
            if name not in _OF_THE_PROCESS:
                self._visit(path, name, item, f"{path}.{name}", depth - 1)
        self._class(type(value), depth)

    def _loader(self, path: str, loader: Any, depth: int) -> None:
        held = attributes(loader)
        parts = {name: held[name] for name in _COMPONENTS if name in held}
        if not is_library(type(loader).__module__):
            parts |= {name: v for name, v in held.items() if name not in _LOADER_NAMES}
        self._object(path, loader, parts, depth)

    def _class(self, cls: type, depth: int) -> None:
        """Search the attributes of a class and the functions that run while it is used."""
        for base in (*getmro(cls), *getmro(type(cls))):
            if is_library(base.__module__) or id(base) in self._seen:
                continue
            self._seen.add(id(base))
            path = f"{base.__module__}.{base.__qualname__}"
            self.found.owners[path] = base
            for name, value in list(vars(base).items()):
                if not name.startswith(("__", "_abc_")) and is_value(value):
                    self._visit(path, name, value, f"{path}.{name}", depth - 1)
        if is_library(cls.__module__):
            return
        for name, function in reading_functions(cls).items():
            self._function(f"{cls.__qualname__}.{name}", function, depth)

    def _function(self, path: str, function: FunctionType, depth: int) -> None:
        """Search the variables that a function uses."""
        if is_library(function.__module__) or depth == 0 or id(function.__code__) in self._seen:
            return
        if function.__closure__ is None:
            self._seen.add(id(function.__code__))  # a closure has other variables each time
        found = self.found
        found.functions[path] = function
        self._closure(path, function, depth)
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for number, value in enumerate(defaults):
            if not isinstance(value, SCALARS):
                self._visit(f"{path} defaults", number, value, f"{path} default", depth - 1)
                found.owners[f"{path} defaults"] = tuple(defaults)
        if vars(function):
            found.owners[f"{path} attributes"] = vars(function)
            for name, value in list(vars(function).items()):
                self._visit(f"{path} attributes", name, value, f"{path}.{name}", depth - 1)
        for namespace, name in facts_of(function).variables:
            module = namespace.get("__name__", "?")
            value = namespace.get(name)
            if not is_library(module) and not isinstance(value, ModuleType):
                found.owners[module] = namespace
                self._visit(module, name, value, f"{module}.{name}", depth - 1)

    def _closure(self, path: str, function: FunctionType, depth: int) -> None:
        names, cells = function.__code__.co_freevars, function.__closure__ or ()
        for name, cell in zip(names, cells, strict=True):
            if id(cell) not in self._seen and (content := _content(cell)) is not cell:
                self._seen.add(id(cell))
                variable = f"{path}:{name}"
                self.found.owners[variable] = cell
                self._visit(variable, None, content, variable, depth - 1)

    def _module(self, path: str, module: nn.Module, depth: int) -> None:
        """Search the modules of a model: attributes, buffers that are not saved, what is frozen."""
        for name, one in module.named_modules():
            where = f"{path} {name}".rstrip()
            self._seen.add(id(one))
            self.found.owners[where] = one
            held = {n: v for n, v in vars(one).items() if n not in _MODULE_NAMES}
            if is_library(type(one).__module__):
                held = {n: v for n, v in held.items() if is_value(v) or isinstance(v, FunctionType)}
            self._object(where, one, held, depth)
            self._buffers_and_flags(where, one)
            self._hooks(where, one, depth)

    def _hooks(self, path: str, owner: Any, depth: int) -> None:
        for name, hook in hooks_of(owner):
            self._search(f"{path}.{name}", hook, depth - 1)

    def _optimizer(self, path: str, optimizer: torch.optim.Optimizer) -> None:
        """Search what an optimizer keeps outside of its ``state``, unless it saves that itself."""
        kind = type(optimizer)
        if kind.state_dict is torch.optim.Optimizer.state_dict and not is_library(kind.__module__):
            held = {n: v for n, v in attributes(optimizer).items() if n not in OF_OPTIMIZER}
            self._object(path, optimizer, held, _MAX_DEPTH)
        self._hooks(path, optimizer, _MAX_DEPTH)

    def _buffers_and_flags(self, where: str, module: nn.Module) -> None:
        found, saved = self.found, self._is_saved
        for name in sorted(module._non_persistent_buffers_set if saved else module._buffers):
            value = module._buffers.get(name)
            if value is None or _is_array(value):
                found.owners[f"{where} buffers"] = module._buffers
                found.values[f"{where} buffers", name] = value
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            self._hooks(f"{where}.{name}", parameter, _MAX_DEPTH)
            if is_sharded(parameter):
                continue
            self._seen.add(id(parameter))
            found.owners[f"{where}.{name}"] = parameter
            found.values[f"{where}.{name}", "requires_grad"] = parameter.requires_grad
            if not saved:
                found.values[f"{where}.{name}", "data"] = parameter.detach()


def hooks_of(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield what torch calls around a module, a gradient or an optimizer's step, with names."""
    kinds = next((kinds for kind, kinds in _HOOKS.items() if isinstance(owner, kind)), ())
    for kind in kinds:
        for number, hook in enumerate((getattr(owner, kind, None) or {}).values()):
            yield f"{kind.strip('_')}[{number}]", hook


_SEARCHERS: dict[type, Callable[[_Searcher, str, Any, int], None]] = {
    FunctionType: _Searcher._function,
    MethodType: _Searcher._method,
    functools.partial: _Searcher._partial,
    nn.Module: _Searcher._module,
    DataLoader: _Searcher._loader,
}


@functools.lru_cache(maxsize=4000)
def _searcher_for(kind: type) -> Callable[[_Searcher, str, Any, int], None] | None:
    """Return how objects of a class are searched; None for those without a way of their own."""
    return next((one for base, one in _SEARCHERS.items() if issubclass(kind, base)), None)


def attributes(value: Any) -> dict[str, Any]:
    """Return the attributes that an object holds itself, without running its code."""
    held: dict[str, Any] = {}
    for cls, descriptor in _slots_of(type(value)):  # type: ignore[arg-type]
        try:
            held[descriptor.__name__] = descriptor.__get__(value, cls)
        except AttributeError:  # not set, or __dict__ itself
            continue
    if isinstance(value, threading.local):
        held.update(threading.local.__getattribute__(value, "__dict__"))  # those of this thread
    with suppress(AttributeError):
        held.update(object.__getattribute__(value, "__dict__"))
    held.pop("__dict__", None)
    held.pop("__weakref__", None)
    return held


@functools.lru_cache(maxsize=4000)
def _slots_of(kind: type) -> list[tuple[type, Any]]:
    """Return the slots of a class, each with the class that defines it."""
    found: list[tuple[type, Any]] = []
    for cls in reversed(kind.__mro__):
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            hidden = name.startswith("__") and not name.endswith("__")
            full = f"_{cls.__name__.lstrip('_')}{name}" if hidden else name
            found.append((cls, vars(cls).get(full)))
    return found


def is_value(value: Any) -> bool:
    """Return whether this is a value, not an object with attributes or a function."""
    if type(value) in SCALAR_TYPES:
        return True
    return isinstance(value, _VALUES) or _is_array(value)


def is_plain(value: Any) -> bool:
    """Return whether a value consists of numbers, strings, arrays and containers of them."""
    return leaves_of(value) is not None or _plain_items(value, MAX_ITEMS) >= 0


def _held_by_library(value: Any, held: dict[str, Any]) -> dict[str, Any]:
    """Return a user's objects and the generators that an object of a library holds.

    Stoker and Hugging Face datasets save what is theirs; other libraries are not searched.
    """
    package = type(value).__module__.partition(".")[0]
    if package not in ("stoker", "datasets"):
        return {}
    kinds = (*RNGS, list) if package == "datasets" else RNGS  # lists of other datasets
    return {
        name: item
        for name, item in held.items()
        if isinstance(item, kinds) or not (is_value(item) or is_opaque(item))
    }


def is_of_stoker(kind: type) -> bool:
    """Return whether a class is one of Stoker's."""
    return kind.__module__.partition(".")[0] == "stoker"


def _plain_items(value: Any, left: int, depth: int = _MAX_DEPTH) -> int:
    """Return how many items may follow, or a negative number if the value is not plain.

    Of a container with more items than that, a sample is checked.
    """
    if type(value) in SCALAR_TYPES:
        return left
    if isinstance(value, (*ARRAYS, np.generic)):
        return left if not isinstance(value, ARRAYS) or _is_array(value) else -1
    if not is_container(value) or depth == 0:  # a list may contain itself
        return -1
    for item in sample(value, left):
        left = _plain_items(item, max(0, left - 1), depth - 1)
        if left < 0:
            return -1
    return left


def sample(value: Any, most: int = MAX_ITEMS) -> Iterator[Any]:
    """Yield the items of a container, or at most some hundred of them if there are too many."""
    size = len(value)
    values: Iterable[Any] = value
    if isinstance(value, dict):
        values = itertools.chain.from_iterable(dict.items(value))
        size *= 2
    if size <= most:
        yield from values
    elif isinstance(value, list | tuple):
        yield from (value[index] for index in range(0, size, max(1, size // 256)))
        yield value[-1]
    else:
        yield from itertools.islice(values, 256)


def _is_array(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return not isinstance(value, np.memmap)
    if not isinstance(value, Tensor) or isinstance(value, nn.Parameter) or is_sharded(value):
        return False
    return type(value) is Tensor and value.layout is torch.strided and not value.is_meta


def _is_open(kind: type) -> bool:
    """Return whether objects of a library's class are searched all the same."""
    return issubclass(kind, _OPEN_CLASSES) or kind.__module__.startswith("torch.utils.data")


def is_opaque(value: Any) -> bool:
    """Return whether this is a library's object, which is a value and not searched."""
    if isinstance(value, nn.Parameter):
        return value.layout is torch.strided and not (is_sharded(value) or value.is_meta)
    if isinstance(value, _SEARCHED) or _is_open(type(value)):
        return False
    return is_library_value(value) and as_function(value) is None


def _behind(proxy: Any) -> Any:
    """Return the object that a proxy stands for; None if it is gone."""
    if type(proxy) is MappingProxyType:
        return gc.get_referents(proxy)[0]
    with suppress(ReferenceError):
        return proxy.__init__.__self__
    return None


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return cell
