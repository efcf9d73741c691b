"""Search objects for values: attributes, closures, and the global variables of their functions.

No code of the user runs: attributes are read from ``__dict__`` and ``__slots__``, functions as
bytecode. The search is bounded in depth and in size.
"""

import functools
import gc
import io
import itertools
import random
import threading
import weakref
from argparse import Namespace
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, EnumType
from inspect import getmro
from queue import Queue, SimpleQueue
from types import (
    BuiltinMethodType,
    CellType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.random import mtrand
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stoker.core.attributes import attributes
from stoker.core.batch_list import leaves_of
from stoker.core.bytecode import (
    as_function,
    facts_of,
    is_library,
    is_user_file,
    other_functions,
    reading_functions,
)
from stoker.core.library_values import CACHES, IMMUTABLE, codec_of_type, is_library_value
from stoker.core.torch_hooks import global_hooks, hooks_of
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
    SimpleQueue,
)
"""Types with a state that cannot be saved from outside: they advance when they are used."""

_GLOBAL_RNGS: tuple[Any, ...] = (random._inst, mtrand._rand, torch.default_generator)
"""The generators of the process, which every checkpoint holds anyway."""

_VALUES = (*SCALARS, *RNGS, *CONTAINERS, *ITERATORS, np.generic, Enum)
_ROOT_VALUES = (*SCALARS, *RNGS, *ARRAYS, *ITERATORS)
_FIXED = (*SCALARS, *IMMUTABLE)

MAX_ITEMS = 10_000
"""Containers with more items are compared by a sample."""

_LEAVES = (*RNGS, *ITERATORS)
_MAX_DEPTH = 24
_SMALLEST_ADDRESS = 2**20
MAX_VALUES = 30_000
_MAX_OBJECTS = 1000
"""How many objects of a list or dict are searched."""

_METHODS = (MethodType, BuiltinMethodType, MethodWrapperType)
_REPLACED = (*SCALARS, np.generic, Enum, *IMMUTABLE)
"""Types of values that cannot change, so that a place has another one if its value changes."""

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


@dataclass(frozen=True)
class Same:
    """Stands for an array, a container or a generator that was found at another place before."""

    place: Place


@dataclass(frozen=True)
class Reference:
    """Which object an attribute or a variable refers to.

    Args:
        name: the path of an object that was there when the run began; None for a later one.
        kind: the name of its class, or of the function.
    """

    name: str | None
    kind: str


@dataclass(frozen=True)
class Attributes:
    """Some attributes of an object, as the root of a search."""

    owner: Any
    names: tuple[str, ...]


@dataclass
class Found:
    """What a search found.

    Args:
        owners: the objects that hold values, by path.
        values: the values, by place.
        functions: the functions that user code runs, by path.
        complete: whether nothing was left out because there was too much.
        references: the objects and functions that attributes refer to, by place.
        objects: the same objects, by path.
        registered: the parameters and buffers of a model, which others save.
        addressed: the places of dicts whose keys are addresses: ``counts[id(self)]``.
    """

    owners: dict[str, Any] = field(default_factory=dict)
    values: dict[Place, Any] = field(default_factory=dict)
    functions: dict[str, FunctionType] = field(default_factory=dict)
    complete: bool = True
    references: dict[Place, Reference] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    registered: set[str] = field(default_factory=set)
    addressed: set[Place] = field(default_factory=set)


class ValuesByPosition:
    """The values of a dict whose keys a checkpoint cannot hold, such as parameters."""

    def __init__(self, owner: dict[Any, Any]) -> None:
        self._owner = owner

    def __setitem__(self, position: int, value: Any) -> None:
        dict.__setitem__(self._owner, list(self._owner)[position], value)


def search(
    roots: Iterable[tuple[str, Any]],
    ignore: Iterable[Any] = (),
    known: Mapping[int, str] | None = None,
) -> Found:
    """Return what is reachable from objects given by name.

    Args:
        roots: where to begin.
        ignore: objects to leave out.
        known: the paths of objects of an earlier search, by their ids, which they keep.
    """
    searcher = _Searcher({id(one) for one in (*_GLOBAL_RNGS, *ignore)}, known)
    for name, root in roots:
        searcher.root(name, root)
    searcher.search_other_methods()
    searcher.note_addresses()
    return searcher.found


def name_of(place: Place) -> str:
    """Return the name of a place for messages: ``dataset.transform.rng``."""
    owner, key = place
    if key is None:
        return owner
    return f"{owner}.{key}" if isinstance(key, str) else f"{owner}[{key!r}]"


class _Searcher:
    def __init__(self, seen: set[int], known: Mapping[int, str] | None = None) -> None:
        self.found = Found()
        self._seen, self._known = seen, known
        self._places: dict[int, Place] = {}
        self._paths: dict[int, str] = {}
        self._classes: set[int] = set()
        self._saved: set[int] = set()  # modules whose parameters and buffers others save
        self._searched_all: set[int] = set()
        self._deferred: list[tuple[type, int]] = []

    def root(self, name: str, value: Any) -> None:
        if name in SAVED_ROOTS and isinstance(value, nn.Module):
            self._saved.update(map(id, value.modules()))
        holder = [value]  # so that a root that is a plain container is found as well
        self.found.owners[name] = holder
        if isinstance(value, Attributes):
            self.found.owners[name] = value.owner
            for key in value.names:
                self._visit(name, key, getattr(value.owner, key), f"{name}.{key}", _MAX_DEPTH)
        elif isinstance(value, torch.optim.Optimizer):
            self._optimizer(name, value)
        elif is_container(value) or isinstance(value, _ROOT_VALUES):
            self._visit(name, 0, value, name, _MAX_DEPTH)
        else:
            self._search(name, value, _MAX_DEPTH)

    def search_other_methods(self) -> None:
        """Search the variables of methods that others may call besides reading an object."""
        functions = dict(self.found.functions)
        while self._deferred:
            cls, depth = self._deferred.pop()
            for name, function in other_functions(cls).items():
                self._function(f"{cls.__qualname__}.{name}", function, depth)
        self.found.functions = functions  # not those, which draw and count elsewhere

    def note_addresses(self) -> None:
        """Note dicts whose keys are addresses of objects, which differ in each process."""
        for place, value in self.found.values.items():
            if isinstance(value, dict) and value:
                key = next(dict.__iter__(value))
                if type(key) is int and key > _SMALLEST_ADDRESS and key in self._seen:
                    self.found.addressed.add(place)

    def _visit(self, owner: str, key: Any, value: Any, path: str, depth: int) -> None:
        """Record a value, or search the object that it is."""
        found = self.found
        if type(value) in _PROXIES:
            self._visit(owner, key, _behind(value), path, depth)
        elif type(value) in SCALAR_TYPES or isinstance(value, _REPLACED):
            found.values[owner, key] = value
        elif isinstance(value, _METHODS):
            self._bound(owner, key, value, path, depth)
        elif id(value) in self._seen:
            self._again(owner, key, value)
        elif len(found.values) > MAX_VALUES or depth == 0:
            found.complete = found.complete and not depth
        elif isinstance(value, _LEAVES) or _is_array(value) or is_iterator(value):
            self._leaf(owner, key, value, path, depth)
        elif is_container(value):
            self._first_at(owner, key, value)
            self._container(value, path, depth)
            if not is_library(type(value).__module__):
                self._of_container(value, path, depth)
        else:
            self._open(owner, key, value, path, depth)

    def _open(self, owner: str, key: Any, value: Any, path: str, depth: int) -> None:
        """Search an object, and record it as a value if it is one of a library."""
        if isinstance(value, CACHES) or is_opaque(value):
            self.found.values[owner, key] = value
        elif _is_of_user(value):
            path = self._refer(owner, key, value, path)
        self._search(path, value, depth)

    def _bound(self, owner: str, key: Any, value: Any, path: str, depth: int) -> None:
        """Search a bound method, and record which one a place refers to if a user wrote it."""
        if _is_of_user(value):
            path = self._refer(owner, key, value, path)
        self._method(path, value, depth)

    def _leaf(self, owner: str, key: Any, value: Any, path: str, depth: int) -> None:
        """Record an array, a generator or an iterator, and the attributes that a user gave it."""
        self._first_at(owner, key, value)
        if isinstance(value, (*RNGS, *ARRAYS)) and not is_library(type(value).__module__):
            self._object(path, value, attributes(value), depth)

    def _first_at(self, owner: str, key: Any, value: Any) -> None:
        self._seen.add(id(value))
        self._places[id(value)] = owner, key
        self.found.values[owner, key] = value

    def _again(self, owner: str, key: Any, value: Any) -> None:
        """Record that a place has a value or an object that was found before."""
        first = self._places.get(id(value), (owner, key))
        if first != (owner, key):
            self.found.values.setdefault((owner, key), Same(first))
        elif _is_of_user(value):
            self._refer(owner, key, value, name_of((owner, key)))

    def _refer(self, owner: str, key: Any, value: Any, path: str) -> str:
        """Record which object a place refers to; return the path of that object."""
        path = self._paths.setdefault(id(value), path)
        name = path if self._known is None else self._known.get(id(value))
        if name is not None:
            path = name
            self.found.objects.setdefault(name, value)
        self.found.references[owner, key] = Reference(name, _kind_name(value))
        return path

    def _container(self, value: Any, path: str, depth: int) -> None:
        """Search the items of a container, unless it is a plain value."""
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

    def _of_container(self, value: Any, path: str, depth: int) -> None:
        """Search the attributes of a container of a user's class."""
        held = getattr(value, "__dict__", {})
        self.found.owners[f"{path} attributes"] = held
        for name, item in list(held.items()):
            self._visit(f"{path} attributes", name, item, f"{path}.{name}", depth - 1)
        self._class(type(value), depth)

    def _search(self, path: str, value: Any, depth: int) -> None:
        """Search what an object holds and what its functions use."""
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, ModuleType):
            self._variables(value, depth)
        elif (searcher := _searcher_for(type(value))) is not None:  # type: ignore[arg-type]
            searcher(self, path, value, depth)
        elif isinstance(value, type):
            self._class(value, depth)
        elif isinstance(value, weakref.ref):
            self._search(path, value(), depth)
        else:
            self._instance(path, value, depth)

    def _instance(self, path: str, value: Any, depth: int) -> None:
        """Search an object with attributes, or the function behind a wrapper of a library."""
        is_own = not is_library(type(value).__module__)
        function = None if is_own else as_function(value)
        if function is not None:
            self._search(path, function, depth)
        else:
            held = attributes(value)
            is_open = is_own or _is_open(type(value))
            held = held if is_open else _held_by_library(value, held)
            if is_open or held:
                self._object(path, value, held, depth)

    def _method(self, path: str, method: Any, depth: int) -> None:
        """Search the object of a bound method: ``random.Random(5).random`` holds a generator."""
        bound = getattr(method, "__self__", None)
        if is_value(bound) or is_opaque(bound):
            self.found.owners[path] = method
            self._visit(path, "__self__", bound, path, depth - 1)
        else:
            self._search(path, bound, depth)
        self._search(path, getattr(method, "__func__", None), depth)

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
            if is_library(base.__module__) or id(base) in self._classes:
                continue
            self._classes.add(id(base))
            path = f"{base.__module__}.{base.__qualname__}"
            self.found.owners[path] = base
            for name, value in list(vars(base).items()):
                hidden = ("__", "_abc_") if not isinstance(base, EnumType) else "_"
                if not name.startswith(hidden) and _is_state_of_class(value):
                    self._visit(path, name, value, f"{path}.{name}", depth - 1)
        if is_library(cls.__module__):
            return
        for name, function in reading_functions(cls).items():
            self._function(f"{cls.__qualname__}.{name}", function, depth)
        if id(cls) not in self._searched_all:
            self._searched_all.add(id(cls))
            self._deferred.append((cls, depth))

    def _variables(self, module: ModuleType, depth: int) -> None:
        """Search all variables of a user's module, of which an object keeps a reference."""
        if is_user_file(getattr(module, "__file__", None) or "<frozen"):
            name = module.__name__
            self.found.owners[name] = vars(module)
            for key, value in list(vars(module).items()):
                if not key.startswith("__") and not isinstance(value, ModuleType):
                    self._visit(name, key, value, f"{name}.{key}", depth - 1)

    def _function(self, path: str, function: FunctionType, depth: int) -> None:
        """Search the variables that a function uses."""
        if is_library(function.__module__) or depth == 0 or id(function.__code__) in self._seen:
            return
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        if function.__closure__ is None and all(isinstance(one, SCALARS) for one in defaults):
            self._seen.add(id(function.__code__))  # a closure has other variables each time
        found = self.found
        found.functions[path] = function
        self._closure(path, function, depth)
        for number, value in enumerate(defaults):
            if not isinstance(value, SCALARS):
                self._visit(f"{path} defaults", number, value, f"{path} default", depth - 1)
                found.owners[f"{path} defaults"] = tuple(defaults)
        found.owners[f"{path} attributes"] = vars(function)
        if vars(function):
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
        for name, hook in global_hooks():
            self._search(name, hook, depth - 1)
        for name, one in module.named_modules():
            where = f"{path} {name}".rstrip()
            self._seen.add(id(one))
            self.found.owners[where] = one
            held = {n: v for n, v in vars(one).items() if n not in _MODULE_NAMES}
            if is_library(type(one).__module__):
                held = {n: v for n, v in held.items() if is_value(v) or isinstance(v, FunctionType)}
            self._object(where, one, held, depth)
            for child, inner in one._modules.items():
                if inner is not None:
                    self._refer(where, child, inner, f"{where}.{child}")
            self._buffers_and_flags(where, one)
            self._hooks(where, one, depth)

    def _hooks(self, path: str, owner: Any, depth: int) -> None:
        for name, hook in hooks_of(owner):
            self._search(f"{path}.{name}", hook, depth - 1)

    def _optimizer(self, path: str, optimizer: torch.optim.Optimizer) -> None:
        """Search what an optimizer keeps outside of its ``state``, unless it saves that itself."""
        kind = type(optimizer)
        if not is_library(kind.__module__):
            own = as_function(kind.state_dict) if _saves_itself(kind) else None
            saved = OF_OPTIMIZER - {"defaults"} | (
                facts_of(own).called if own is not None else set()
            )
            held = {n: v for n, v in attributes(optimizer).items() if n not in saved}
            if not {"__dict__", "vars"} & saved:
                self._object(path, optimizer, held, _MAX_DEPTH)
        self._hooks(path, optimizer, _MAX_DEPTH)

    def _buffers_and_flags(self, where: str, module: nn.Module) -> None:
        found, saved = self.found, id(module) in self._saved
        if saved:
            names = module._parameters.keys() | module._buffers.keys()
            names -= module._non_persistent_buffers_set
            found.registered.update(f"{where}.{name}" for name in names)
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


def _saves_itself(kind: type[torch.optim.Optimizer]) -> bool:
    return kind.state_dict is not torch.optim.Optimizer.state_dict


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


def is_iterator(value: Any) -> bool:
    """Return whether a value of a library advances when it is used, and cannot be saved."""
    if isinstance(value, ITERATORS):
        return True
    kind = type(value)
    is_foreign = hasattr(kind, "__next__") and is_library(kind.__module__)
    return is_foreign and not isinstance(value, io.IOBase | Tensor | nn.Module)


def _is_of_user(value: Any) -> bool:
    """Return whether this is a user's object, method or function, or a library's module."""
    if isinstance(value, FunctionType):
        return not is_library(value.__module__)
    if isinstance(value, _METHODS):
        return isinstance(value, MethodType) and _is_of_user(value.__self__)
    if isinstance(value, ModuleType | Tensor) or is_container(value):
        return False
    is_own = not is_library(type(value).__module__) or _is_open(type(value))
    return is_own or isinstance(value, nn.Module | type | functools.partial)


def _kind_name(value: Any) -> str:
    value = value.__func__ if isinstance(value, MethodType) else value
    named = value if isinstance(value, FunctionType | type) else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _is_state_of_class(value: Any) -> bool:
    """Return whether an attribute of a class may change: a value, a cache, an object of a user."""
    if is_value(value) or isinstance(value, CACHES):
        return True
    is_code = isinstance(value, FunctionType | type | nn.Module)
    return codec_of_type(type(value)) or not (is_code or is_library(type(value).__module__))


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
    package = str(type(value).__module__).partition(".")[0]
    if package not in ("stoker", "datasets"):
        return {}
    kinds: tuple[type, ...] = RNGS
    if package == "datasets":
        kinds = (*RNGS, list, dict)  # lists of other datasets, functions by name
    return {
        name: item
        for name, item in held.items()
        if isinstance(item, kinds) or not (is_value(item) or is_opaque(item))
    }


def is_of_stoker(kind: type) -> bool:
    """Return whether a class is one of Stoker's."""
    return str(kind.__module__).partition(".")[0] == "stoker"


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
    return issubclass(kind, _OPEN_CLASSES) or str(kind.__module__).startswith("torch.utils.data")


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
