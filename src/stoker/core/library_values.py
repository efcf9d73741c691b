"""Values of Python's own and of other libraries: how they are compared, saved and restored.

A shared counter, a frame of pandas, a gradient scaler: user code keeps state in objects whose
attributes mean nothing from outside. Some kinds are saved here by what they publish. Any other is
compared by its pickle, which is never stored: a checkpoint holds no code.
"""

import contextvars
import ctypes
import datetime
import io
import pickle
import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from multiprocessing.sharedctypes import SynchronizedBase
from pathlib import Path, PurePath
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunctionSubclass

from stoker.core.bytecode import closure_of, facts_of, is_library
from stoker.core.digest import digest
from stoker.core.types import Stateful

_COMPARED = frozenset({"numpy", "pandas", "pyarrow", "scipy", "sklearn", "torch"})
_NOT_COMPARED = frozenset(
    {"_thread", "abc", "asyncio", "concurrent", "contextlib", "importlib", "logging", "selectors"}
    | {"signal", "socket", "ssl", "subprocess", "threading", "typing", "warnings", "weakref"}
)
"""Modules of Python whose objects belong to the process, and hold no state of a training."""

_MAX_PICKLED = 2**20
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


@dataclass(frozen=True)
class _Codec:
    """How a kind of value is saved as a plain value, and restored.

    Args:
        kinds: the types.
        save: returns the plain value.
        restore: sets an object to a plain value, or is None for an object that cannot change.
        build: returns a new object with a plain value, or is None if there is no way.
    """

    kinds: tuple[type, ...]
    save: Callable[[Any], Any]
    restore: Callable[[Any, Any], None] | None = None
    build: Callable[[Any], Any] | None = None


def _memory(value: Any) -> memoryview:
    raw = value.get_obj() if isinstance(value, SynchronizedBase) else value
    return memoryview(raw).cast("B")


def _write_memory(value: Any, content: bytes) -> None:
    _memory(value)[:] = content


def _write_items(value: Any, content: bytes) -> None:
    value[:] = array(value.typecode, content) if isinstance(value, array) else content


def _write_masked(array: Any, content: Any) -> None:
    array.data[...], array.mask = content


def _content_of(variable: contextvars.ContextVar[Any]) -> list[Any]:
    try:
        return [variable.get()]
    except LookupError:  # it has no value, and no default
        return []


def _set_content(variable: contextvars.ContextVar[Any], content: list[Any]) -> None:
    for value in content:
        variable.set(value)


def bit_state(generator: np.random.BitGenerator) -> dict[str, Any]:
    """Return the state of a bit generator, and how many generators it has spawned, if any."""
    spawned = getattr(generator.seed_seq, "n_children_spawned", 0)
    return {**generator.state, **({"spawned": spawned} if spawned else {})}


def set_bit_state(generator: np.random.BitGenerator, state: dict[str, Any]) -> None:
    """Restore what `bit_state` returned."""
    generator.state = {name: value for name, value in state.items() if name != "spawned"}
    if isinstance(generator.seed_seq, np.random.SeedSequence):
        _set_spawned(generator.seed_seq, state.get("spawned", 0))


def _set_spawned(sequence: np.random.SeedSequence, count: int) -> None:
    sequence.spawn(count - sequence.n_children_spawned)  # a negative number takes them back


CODECS: dict[str, _Codec] = {
    "bytes": _Codec((bytearray, array), bytes, _write_items),
    "shared memory": _Codec(
        (SynchronizedBase, ctypes._SimpleCData, ctypes.Array, ctypes.Structure),
        lambda value: bytes(_memory(value)),
        _write_memory,
    ),
    "masked array": _Codec(
        (np.ma.MaskedArray,),
        lambda value: [value.data.copy(), np.ma.getmaskarray(value).copy()],
        _write_masked,
        lambda content: np.ma.MaskedArray(*content),
    ),
    "bit generator": _Codec((np.random.BitGenerator,), bit_state, set_bit_state),
    "seed sequence": _Codec(
        (np.random.SeedSequence,), lambda value: value.n_children_spawned, _set_spawned
    ),
    "context variable": _Codec((contextvars.ContextVar,), _content_of, _set_content),
    "path": _Codec((PurePath,), str, build=Path),
    "decimal": _Codec((Decimal,), str, build=Decimal),
    "fraction": _Codec((Fraction,), str, build=Fraction),
    "datetime": _Codec(
        (datetime.datetime,), datetime.datetime.isoformat, build=datetime.datetime.fromisoformat
    ),
    "date": _Codec((datetime.date,), datetime.date.isoformat, build=datetime.date.fromisoformat),
    "range": _Codec((range,), lambda v: [v.start, v.stop, v.step], build=lambda v: range(*v)),
    "slice": _Codec((slice,), lambda v: [v.start, v.stop, v.step], build=lambda v: slice(*v)),
    "state_dict": _Codec(
        (Stateful,),
        lambda value: value.state_dict(),
        lambda value, state: value.load_state_dict(state),
    ),
}
"""The kinds of values that are saved, by the name under which a checkpoint holds them."""


def is_library_value(value: Any) -> bool:
    """Return whether a value is one of a library's that is compared, and saved if possible."""
    kind = type(value)
    if isinstance(value, FunctionType | ModuleType | type | nn.Module | Tensor):
        return isinstance(value, Tensor) and (value.layout in _SPARSE or is_subclass(value))
    package = str(kind.__module__).partition(".")[0]
    if package == "torch":
        return isinstance(value, Stateful) or kind.__module__ == "torch.quasirandom"
    if package in _COMPARED:
        return not isinstance(value, np.memmap) or value.flags.writeable
    return package in sys.stdlib_module_names and not belongs_to_process(value)


def is_subclass(tensor: Tensor) -> bool:
    """Return whether a tensor has a class of its own, whose code is not run."""
    return type(tensor) not in (Tensor, nn.Parameter)


def belongs_to_process(value: Any) -> bool:
    """Return whether this is a thread, a lock, a logger or the like: no state of a training."""
    return str(type(value).__module__).partition(".")[0] in _NOT_COMPARED


IMMUTABLE = tuple(kind for one in CODECS.values() if one.restore is None for kind in one.kinds)
"""Types of values that can only be replaced."""


def codec_of(value: Any) -> str | None:
    """Return the name of the codec that saves a value, or None if there is none."""
    found = next(
        ((name, one) for name, one in CODECS.items() if isinstance(value, one.kinds)), None
    )
    return found[0] if found is not None and _survives(value, found[1]) else None


def codec_of_type(kind: type) -> bool:
    """Return whether there is a codec for values of a type that can change."""
    return any(issubclass(kind, one.kinds) for one in CODECS.values() if one.restore is not None)


def _survives(value: Any, codec: _Codec) -> bool:
    """Return whether a rebuilt value is the same: a pandas Timestamp is no plain datetime."""
    if codec.build is None:
        return True
    rebuilt = codec.build(codec.save(value))
    return type(rebuilt) is type(value) and repr(rebuilt) == repr(value)


def library_signature(value: Any) -> Any:
    """Return something that differs if a library's value does, in bounded time."""
    if (name := codec_of(value)) is not None:
        return name, digest(CODECS[name].save(value))
    if isinstance(value, CACHES):
        return value.cache_info().misses
    if isinstance(value, Tensor):
        return _tensor_signature(value)
    if type(value).__module__ == "sqlite3" and hasattr(value, "total_changes"):
        return value.total_changes
    if hasattr(type(value), "hexdigest"):  # hashlib
        return value.hexdigest()
    return type(value), _pickle_digest(value)


def _tensor_signature(value: Any) -> Any:
    """Return something that differs if a sparse tensor, or one of a class of its own, does."""
    if is_subclass(value):
        with DisableTorchFunctionSubclass():
            content = value.detach().as_subclass(Tensor) if value.nbytes <= _MAX_PICKLED else None
            return type(value), tuple(value.shape), value._version, digest(content)
    values = value._values() if value.layout is torch.sparse_coo else value.values()
    return tuple(value.shape), values.numel(), digest(values.detach().reshape(-1)[:1024])


class _Pickler(pickle.Pickler):
    """Describe an object of a library, without the objects of users that it refers to."""

    def persistent_id(self, value: Any) -> str | None:
        """Replace what is not the library's own by the name of its type."""
        kind = type(value)
        own = is_library(kind.__module__) and not isinstance(value, FunctionType | nn.Module)
        return None if own else kind.__qualname__


class _Bounded(io.BytesIO):
    def write(self, content: Any) -> int:
        if self.tell() > _MAX_PICKLED:
            raise OverflowError
        return super().write(memoryview(content)[:_MAX_PICKLED])


def _pickle_digest(value: Any) -> str | None:
    """Return a digest of an object's pickle, of large buffers in it a sample; None without one."""
    text, buffers = _Bounded(), list[pickle.PickleBuffer]()
    try:
        _Pickler(text, protocol=5, buffer_callback=buffers.append).dump(value)
    except OverflowError:
        pass
    except Exception:
        return None  # a lock, a connection: nothing is known of its state
    contents = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
    samples = [one if one.size <= 2**16 else one[:: one.size // 2**12] for one in contents]
    return digest([text.getvalue(), *samples])


CACHES = (type(lru_cache(lambda: None)),)
"""Wrappers that keep the results of a function."""


def is_open_for_reading(value: Any) -> bool:
    """Return whether this is a file on disk whose position moves when it is read."""
    if hasattr(type(value), "read_byte"):  # a file in memory
        return not value.closed
    return isinstance(value, io.BufferedReader | io.TextIOWrapper | io.FileIO) and not (
        value.closed or value.writable()
    )


def keeps_random_results(cache: Any) -> bool:
    """Return whether a cached function draws or counts, as far as its own code shows."""
    function = cache.__wrapped__
    if not isinstance(function, FunctionType):
        return False
    return _draws_or_counts(function, set())


def _draws_or_counts(function: FunctionType, seen: set[int]) -> bool:
    seen.add(id(function))
    facts = facts_of(function)
    if facts.draws or facts.counts:
        return True
    used = [namespace.get(name) for namespace, name in facts.variables]
    used += [value for _, value in closure_of(function)]
    return any(
        _draws_or_counts(one, seen)
        for one in used
        if isinstance(one, FunctionType) and id(one) not in seen and not is_library(one.__module__)
    )
