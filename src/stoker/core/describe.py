"""Describe objects by plain values: what they are made of, the same in every process.

    >>> found = Description()
    >>> found.add("sampler", sampler)
    >>> found.values
    {"sampler": "WeightedRandomSampler", "sampler.weights": "tensor float64[512] #3fa9c012", …}

Nothing is drawn, counted or read through methods of the object: a description looks at attributes
only. It contains no addresses and does not depend on the order of sets. Objects that cannot be
described are recorded by their type.
"""

import gc
import operator
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from stoker.core.attributes import attributes
from stoker.core.bytecode import (
    changed_attributes,
    changed_names,
    closure_of,
    code_hash,
    constants_in,
    is_user_class,
    is_user_code,
    names_in,
    own_functions,
    used_globals,
)
from stoker.core.digest import array_text, digest, file_text, tensor_text
from stoker.core.library_values import belongs_to_process
from stoker.core.object_search import RNGS
from stoker.core.seed import seed_or_none
from stoker.core.torch_hooks import global_hooks, hooks_of
from stoker.core.tree import CONTAINERS, is_container, raw_items

Plain: TypeAlias = str | int | float | bool | list[Any] | None

_SCALARS = (bool, int, float, str, type(None))
_AS_PLAIN: dict[type, Callable[[Any], Any]] = {
    int: int.__index__,
    float: float.__float__,
    str: str.__str__,
}
_TEXTS = (torch.dtype, torch.device, torch.Size, torch.layout, np.dtype, PurePath, range, complex)
_MAX_DEPTH = 48
_DEPTH_OF_LIBRARIES = 8
"""How many levels an object of a library counts as: what is deep in it is its own affair."""

_MAX_ITEMS = 40
_MAX_TEXT = 200
_MAX_ROWS = 200_000
_MAX_VALUES = 20_000

OF_LAYOUT = frozenset(
    [
        "rank",
        "world_size",
        "num_replicas",
        "local_rank",
        "local_world_size",
        "process_index",
        "num_processes",
        "device",
        "num_workers",
        "pid",
        "epoch",
    ]
)
"""Attributes that depend on the processes of a job, or on how far it got."""

OF_LENGTH = frozenset(
    [
        "epochs",
        "num_epochs",
        "n_epochs",
        "max_epochs",
        "max_steps",
        "num_steps",
        "total_steps",
        "resume",
        "run_dir",
        "verbose",
        "progress",
        "log_every",
        "output_dir",
    ]
)
"""Variables of a script that may change when a run resumes: its length, and where it writes."""

_WRITTEN = ("cache", "log", "tmp", "temp", "output", "save")
"""Words in the names of attributes whose files a run may write."""

_MODULE_INTERNALS = frozenset(vars(nn.Module())) | {"_compiled_call_impl", "_is_full_backward_hook"}
_SMALL_BUFFER = 64


class Description:
    """Collects plain values by dotted keys.

    Attributes:
        values: the description so far. ``code.…`` holds hashes of the user's own functions.
    """

    def __init__(self) -> None:
        self.values: dict[str, Plain] = {}
        self._seen: dict[int, tuple[str, Any]] = {}
        self._folders: tuple[str, ...] = ()

    def add(self, key: str, value: Any, *, files: bool = False, skip: Iterable[str] = ()) -> None:
        """Describe a value, and what it consists of, under a key.

        Args:
            key: where to put it.
            value: any object.
            files: whether texts that are paths of files are described by the sizes and times of
                those files.
            skip: the names of attributes of the value itself to leave out.
        """
        with self._reading_files(("",) if files else ()):
            self._add(key, value, _MAX_DEPTH, frozenset(skip))

    def add_type(self, key: str, value: Any) -> None:
        """Describe only the type of a value, with its code if the user wrote it."""
        self._seen[id(value)] = key, value
        self.put(key, _type_name(value))
        self._add_class(type(value))

    def put(self, key: str, value: Plain) -> None:
        """Set a plain value."""
        if len(self.values) < _MAX_VALUES:
            self.values[key] = value
        else:
            self.values["more"] = digest((self.values.get("more"), key, value))

    def hide(self, *values: Any) -> None:
        """Do not describe these objects where others refer to them."""
        self._seen.update((id(value), ("", value)) for value in values)

    @contextmanager
    def _reading_files(self, folders: tuple[str, ...]) -> Iterator[None]:
        here = _folder_of_script() if folders else ""
        before, self._folders = self._folders, (*folders, here) if here else folders
        try:
            yield
        finally:
            self._folders = before

    def _add(self, key: str, value: Any, depth: int, skip: Set[str] = frozenset()) -> None:
        try:
            self._describe(key, value, depth, skip)
        except Exception:  # a run must not fail because of a foreign object
            self.put(key, type(value).__qualname__.rpartition("<locals>.")[2])

    def _describe(self, key: str, value: Any, depth: int, skip: Set[str]) -> None:
        value = _opened(value)
        text = self._leaf(value)
        if text is not _NOT_A_LEAF:
            self.put(key, text)
        elif id(value) in self._seen:
            self.put(key, self._repeated(value))
        elif depth <= 0 or belongs_to_process(value):
            self.put(key, _type_name(value))
        else:
            self._seen[id(value)] = key, value
            self._add_parts(key, value, depth, skip)

    def _repeated(self, value: Any) -> str:
        """Return the text for an object that has been described before, or is hidden."""
        if isinstance(value, FunctionType | type | MethodType):
            return _function_name(value)
        first = self._seen[id(value)][0]
        return f"the same as {first}" if first else _type_name(value)

    def _leaf(self, value: Any) -> Any:
        """Return a value that has no parts as a plain value, `_NOT_A_LEAF` for any other."""
        if isinstance(value, _SCALARS) and not isinstance(value, Enum):
            return self._scalar(value)
        if isinstance(value, PurePath) and self._folders:
            return self._scalar(str(value))
        if isinstance(value, np.ndarray) and value.dtype == object:
            return _NOT_A_LEAF
        if type(value) in _SHOWN:
            return _SHOWN[type(value)](value)
        for kinds, text in _LEAVES:
            if isinstance(value, kinds):
                return text(value)
        return _NOT_A_LEAF if _has_parts(value) else _type_name(value)

    def _scalar(self, value: Any) -> Plain:
        for kind, as_plain in _AS_PLAIN.items():
            if isinstance(value, kind) and not isinstance(value, bool):
                value = as_plain(value)  # of a subclass, such as a scalar of NumPy
        if isinstance(value, str):
            value = _from_script(value)
            known = file_text(value, self._folders) if self._folders else None
            if known is not None:
                return known
            return value if len(value) <= _MAX_TEXT else f"{len(value)} characters #{digest(value)}"
        if isinstance(value, float) and _is_clock(value):
            return "a time"
        return value  # type: ignore[no-any-return]

    def _add_parts(self, key: str, value: Any, depth: int, skip: Set[str]) -> None:
        if isinstance(value, Mapping):
            self._add_mapping(key, value, depth)
        elif isinstance(value, CONTAINERS):
            self._add_items(key, value, depth, skip)
        elif isinstance(value, np.ndarray):
            self.put(key, f"array object{list(value.shape)} #{digest(value.tolist())}")
        elif isinstance(value, nn.Module):
            self.add_module(key, value, content=True)
        elif isinstance(value, FunctionType):
            self._add_function(key, value, depth)
        elif isinstance(value, MethodType):
            self.put(key, f"{_type_name(value.__self__)}.{value.__func__.__name__}")
            self._add(f"{key}.of", value.__self__, depth - 1)
        elif isinstance(value, partial):
            self._add(key, value.func, depth - 1)
            self._add(f"{key}.args", list(value.args), depth - 1)
            self._add(f"{key}.keywords", value.keywords, depth - 1)
        elif isinstance(value, type):
            self.put(key, value.__qualname__)
            self._add_class(value)
        elif str(type(value).__module__).partition(".")[0] == "pandas":
            self.put(key, _frame_text(value))
        else:
            self.put(key, _type_name(value))
            self._add_class(type(value))
            self._add_attributes(key, value, depth, skip)

    def _add_mapping(self, key: str, value: Mapping[Any, Any], depth: int) -> None:
        if type(value) not in _MAPPINGS and not isinstance(value, dict):
            self._add_attributes(key, value, depth)
            return
        found = dict(dict.items(value)) if isinstance(value, dict) else dict(value)
        if len(found) > _MAX_ITEMS:
            self.put(key, f"{len(found)} entries #{digest(found)}")
            return
        for name in sorted(found, key=digest):
            shown = name if isinstance(name, _SCALARS) else _type_name(name)
            if shown not in OF_LAYOUT:
                self._add(f"{key}.{shown}", found[name], depth - 1)

    def _add_items(self, key: str, container: Any, depth: int, skip: Set[str]) -> None:
        if not is_container(container):
            self._add_class(type(container))
            self._add_attributes(key, container, depth, skip)
        value = raw_items(container)
        files = self._folders and any(isinstance(one, str) for one in value[:1])
        if isinstance(container, Set):
            value = sorted(value, key=digest)
        plain = all(isinstance(one, _SCALARS) for one in value[:_MAX_ITEMS])
        if len(value) > _MAX_ITEMS or files:
            value = [_from_script(one) if type(one) is str else one for one in value]
            self.put(key, f"{len(value)} items #{digest(value, files=self._folders)}")
        elif plain:
            self.put(key, [self._scalar(one) for one in value])
        else:
            for index, one in enumerate(value):
                self._add(f"{key}.{index}", one, depth - 1)

    def _add_attributes(
        self, key: str, value: Any, depth: int, skip: Set[str] = frozenset()
    ) -> None:
        held = attributes(value)
        if isinstance(known := held.get("_fingerprint"), str):  # a Hugging Face dataset
            self.put(f"{key}.fingerprint", known)
            return
        depth -= _levels_of(type(value))
        texts = [str(one) for one in held.values() if isinstance(one, str | PurePath)]
        roots = [one for one in texts if self._folders and one and os.path.isdir(one)]
        for name, one in held.items():
            shown = name.strip("_")
            if shown and shown not in OF_LAYOUT and name not in skip and not _is_internal(name):
                written = any(word in shown.lower() for word in _WRITTEN)
                with self._reading_files(() if written else (*self._folders, *roots)):
                    self._add(f"{key}.{shown}", one, depth)

    def _add_class(self, kind: type) -> None:
        """Hash the methods of the user's own classes, and describe the constants in them."""
        for base in kind.__mro__:
            if str(base.__module__).partition(".")[0] in ("torch", "stoker", "builtins", "numpy"):
                continue
            if id(base) in self._seen or not is_user_class(base):
                continue
            self._seen[id(base)] = "", base
            filled: set[str] = set()
            for function in own_functions(base):
                self._add_code(function)
                filled |= changed_attributes(function.__code__)
            for name, value in vars(base).items():
                shown = not name.startswith(("__", "_abc_")) and name not in OF_LAYOUT
                if shown and name not in filled and _is_setting(value):
                    held = value.__func__ if isinstance(value, staticmethod) else value
                    self._add(
                        f"{base.__qualname__.rpartition('.')[2]}.{name}", held, _MAX_DEPTH // 2
                    )

    def _add_patches(self, kind: type) -> None:
        """Hash the functions of a user that replace those of a library's class."""
        for base in kind.__mro__:
            if id(base) not in self._seen and not is_user_class(base):
                self._seen[id(base)] = "", base
                for function in own_functions(base):
                    self._add_code(function)

    def _add_function(self, key: str, function: FunctionType, depth: int) -> None:
        if not is_user_code(function.__code__, function.__module__):
            self.put(key, _function_name(function))
        else:
            self.put(key, f"{_function_name(function)} #{code_hash(function.__code__)}")
        self._add_variables(key, function, depth)

    def _add_code(self, function: FunctionType) -> None:
        """Add a function that is called by name, such as a method or a helper."""
        name = _function_name(function)
        self.put(f"code.{name}", code_hash(function.__code__))
        self._add_variables(name, function, _MAX_DEPTH // 2)

    def _add_variables(self, key: str, function: FunctionType, depth: int) -> None:
        """Describe the defaults, the closure and the globals that a function uses."""
        for index, value in enumerate(function.__defaults__ or ()):
            self._add(f"{key}.default {index}", value, depth - 1)
        for name, value in (function.__kwdefaults__ or {}).items():
            self._add(f"{key}.{name}", value, depth - 1)
        skipped = {*OF_LAYOUT, "__class__", *changed_names(function.__code__)}
        if not key.startswith("lr_scheduler"):
            skipped |= OF_LENGTH | {"name"}
        known = [*closure_of(function)]
        if is_user_code(function.__code__, function.__module__):
            known += used_globals(function)
        for name, value in known:
            if name not in skipped:
                self._add_variable(f"{key}.{name}", value, function, depth)

    def _add_variable(self, key: str, value: Any, function: FunctionType, depth: int) -> None:
        """Describe a variable of a function; of an object, what the function uses of it."""
        if isinstance(value, FunctionType):
            if id(value) not in self._seen:
                self._seen[id(value)] = key, value
                if is_user_code(value.__code__, value.__module__):
                    self._add_code(value)
                elif value.__closure__ and depth > 0:
                    self._add_function(key, value, depth - 1)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, Mapping) and type(value) in _MAPPINGS:
            used = constants_in(function.__code__)
            self._add(key, {k: v for k, v in value.items() if k in used} or dict(value), depth - 1)
        elif self._leaf(value) is not _NOT_A_LEAF or isinstance(
            value, list | tuple | Set | partial
        ):
            self._add(key, value, depth - 1)
        elif not isinstance(value, nn.Module) and id(value) not in self._seen:
            used = names_in(function.__code__)
            named = {n: v for n, v in attributes(value).items() if n in used}
            if named or callable(value):
                self._add(key, named or value, depth - 1)

    # Modules

    def add_module(self, key: str, module: nn.Module, *, content: bool = False) -> None:
        """Describe a module: types, settings, shapes; weights are left out.

        Args:
            key: where to put it.
            module: the module.
            content: also the values of all its buffers, such as the weights of a criterion.
        """
        first: dict[int, str] = {}
        for name, hook in global_hooks():
            self._add(f"{key}.{name}", hook, _MAX_DEPTH // 2)
        for name, one in module.named_modules():
            path = f"{key}.{name}".rstrip(".")
            self._seen[id(one)] = path, one
            self.put(path, _type_name(one))
            self._add_class(type(one))
            self._add_patches(type(one))
            for attribute, value in attributes(one).items():
                shown = attribute.strip("_")
                if attribute not in _MODULE_INTERNALS and shown and shown not in OF_LAYOUT:
                    self._add(f"{path}.{shown}", value, _MAX_DEPTH - 8)
            self.add_hooks(path, one)
            self._add_tensors(path, one, first, content=content)

    def add_hooks(self, path: str, owner: Any) -> None:
        """Describe the functions that torch calls around a module, a gradient or an update."""
        for name, hook in hooks_of(owner):
            if isinstance(hook, FunctionType | partial | MethodType) or is_user_class(type(hook)):
                self._add(f"{path}.{name}", hook, _MAX_DEPTH // 2)

    def _add_tensors(
        self, path: str, module: nn.Module, first: dict[int, str], *, content: bool
    ) -> None:
        for name, parameter in module._parameters.items():
            key = f"{path}.{name}"
            if parameter is not None:
                tied = first.setdefault(id(parameter), key)
                frozen = "" if parameter.requires_grad else ", frozen"
                same = "" if tied == key else f", tied to {tied}"
                self.put(key, f"{tensor_text(parameter, content=False)}{frozen}{same}")
                if not same:
                    self.add_hooks(key, parameter)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                small = buffer.numel() <= _SMALL_BUFFER and not name.startswith(
                    ("running_", "num_")
                )
                self.put(f"{path}.{name}", tensor_text(buffer, content=content or small))


_OPAQUE = ("_thread", "threading", "_io", "io", "multiprocessing", "logging", "socket")
_NOT_A_LEAF = object()
_MAPPINGS = (dict, nn.ModuleDict)


_OF_CLASS = (
    *(FunctionType, classmethod, property, type, ModuleType, nn.Module, GeneratorType),
    *(GetSetDescriptorType, MemberDescriptorType, WrapperDescriptorType),
)
"""What a class has that is described elsewhere, or is no setting."""


def _is_setting(value: Any) -> bool:
    """Return whether an attribute of a class is a setting or an object, not one of its methods."""
    if isinstance(value, staticmethod):
        return not isinstance(value.__func__, FunctionType)
    wrapped = getattr(value, "__dict__", {}).get("__wrapped__")
    return not isinstance(value, _OF_CLASS) and wrapped is None


def _has_parts(value: Any) -> bool:
    if isinstance(value, BuiltinFunctionType | GeneratorType):
        return False
    return str(type(value).__module__).partition(".")[0] not in _OPAQUE


def _levels_of(kind: type) -> int:
    """Return how many levels the attributes of an object are below it."""
    is_own = is_user_class(kind) or str(kind.__module__).startswith("torch.utils.data")
    return 1 if is_own else _DEPTH_OF_LIBRARIES


def _is_internal(name: str) -> bool:
    return name.startswith("__") or name in ("_IterableDataset_len_called", "_iterator")


def _type_name(value: Any) -> str:
    if isinstance(value, BuiltinFunctionType | FunctionType):
        return _function_name(value)
    kind = type(value)
    if kind.__name__.startswith("FSDP") and len(kind.__bases__) == 2:
        kind = kind.__bases__[1]
    return kind.__qualname__.rpartition("<locals>.")[2]


def _function_name(function: Any) -> str:
    return str(getattr(function, "__qualname__", "function")).rpartition("<locals>.")[2]


def _seed_text(value: Any) -> str:
    """Return the seed of a random number generator, if somebody chose it."""
    if isinstance(value, torch.Generator):
        return f"generator, seed {seed_or_none(value.initial_seed())}"
    if isinstance(value, np.random.Generator):
        entropy = getattr(value.bit_generator.seed_seq, "entropy", None)
        return f"generator, seed {seed_or_none(entropy)}"
    return "generator"


def _bytes_text(value: Any) -> str:
    return f"{len(value)} bytes #{digest(bytes(value))}"


_LEAVES: list[tuple[Any, Callable[[Any], Plain]]] = [
    (Tensor, tensor_text),
    (np.ndarray | np.generic, array_text),
    (bytes | bytearray | memoryview, _bytes_text),
    (PurePath, lambda value: _from_script(str(value))),
    ((Enum, *_TEXTS), str),
    (RNGS, _seed_text),
    (ModuleType, _type_name),
]
"""How values without parts are described, by their types."""


def _folder_of_script() -> str:
    """Return the folder of the script that runs; empty in a notebook or a command."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.dirname(os.path.abspath(file)) if isinstance(file, str) else ""


def _from_script(text: str) -> str:
    """Return a path below the script as seen from there, so that both can be moved together."""
    here = _folder_of_script() if text.startswith(os.sep) else ""
    if len(here) > 1 and (text == here or text.startswith(here + os.sep)):
        return f".{text[len(here) :]}"
    return text


def _opened(value: Any) -> Any:
    """Return what a view or a getter of Python consists of, any other value as it is."""
    if type(value) is MappingProxyType:
        return gc.get_referents(value)[0]
    if type(value) in (operator.attrgetter, operator.itemgetter, operator.methodcaller):
        return list(value.__reduce__())
    return value


def _date_text(value: date) -> str:
    return "a time" if _is_clock(time.mktime(value.timetuple())) else repr(value)


_SHOWN: dict[type, Callable[[Any], Plain]] = {
    **dict.fromkeys((Decimal, Fraction, timedelta), repr),
    **dict.fromkeys((date, datetime), _date_text),
    re.Pattern: lambda value: f"{value.pattern!r}, flags {value.flags}",
    np.random.SeedSequence: lambda value: f"seed {seed_or_none(value.entropy)}",
}
"""How values of libraries are described whose attributes cannot be read."""


def _is_clock(value: float) -> bool:
    """Return whether a number is a point in time that was read from a clock."""
    if abs(value - time.time()) < 86_400:
        return True
    drawn = value > 60 and round(value, 5) != value
    return drawn and min(abs(value - time.perf_counter()), abs(value - time.monotonic())) < 600


def _frame_text(value: Any) -> str:
    """Return the shape, the types and the digest of a pandas object."""
    hash_rows: Any = sys.modules["pandas"].util.hash_pandas_object
    shape = list(getattr(value, "shape", ()))
    columns = str(value.dtypes.to_dict() if len(shape) == 2 else getattr(value, "dtype", ""))
    step = max(1, len(value) // _MAX_ROWS)
    rows = value.iloc[::step] if hasattr(value, "iloc") else value[::step]
    try:
        content = digest((columns, np.asarray(hash_rows(rows))))
    except TypeError:  # a column of objects that have no hash
        content = digest(columns)
    return f"{_type_name(value)} {shape} #{content}"
