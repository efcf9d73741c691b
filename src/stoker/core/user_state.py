"""Save and restore state of user code that has no ``state_dict``.

A sampler with a generator of its own, a dataset that counts its passes, a step with a running mean:
`UserState` finds such values, saves those that have changed since the run began, and restores
them in the same objects. A value that the user edits between two runs, and that training does not
change, is never overridden. What cannot be saved is reported once.
"""

import random
import sys
import threading
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from enum import Enum, Flag
from functools import partial
from inspect import getattr_static
from types import CellType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from stoker.core.batch_list import leaves_of
from stoker.core.bytecode import facts_of, is_library
from stoker.core.library_values import (
    CACHES,
    CODECS,
    codec_of,
    is_open_for_reading,
    keeps_random_results,
    set_bit_state,
)
from stoker.core.log import get_logger
from stoker.core.object_search import (
    ARRAYS,
    MAX_ITEMS,
    MAX_VALUES,
    RNGS,
    SCALAR_TYPES,
    SCALARS,
    Found,
    Place,
    Reference,
    Same,
    ValuesByPosition,
    is_iterator,
    is_opaque,
    is_plain,
    is_value,
    name_of,
    search,
)
from stoker.core.signatures import (
    MAX_HASHED,
    MAX_NUMBERS,
    is_dense,
    rng_state,
    signature,
    signatures,
    text_of,
)
from stoker.core.timers import timed_guard
from stoker.core.tree import CONTAINERS, is_container

Entries: TypeAlias = list[list[Any]]
"""Saved values, each with its place: ``[owner, key, value]``."""

_log = get_logger()

_MISSING = object()
_MAX_SAVED = 256 * 2**20
"""Larger values are not saved, but reported."""

_MAX_IN_CONTAINER = 2**24
"""Containers whose arrays have more bytes are not saved, but reported."""


_REPLACEABLE = frozenset((Tensor, np.ndarray, list, dict, set))
"""Types of which a new object is made if training replaced the first one."""


class UserState:
    """The changing values of some objects, and of the variables that their functions use.

    Args:
        roots: returns the objects to search, by name.
        ignore: returns objects that others save.
        is_data: whether the objects read data, which decides what they create.
    """

    def __init__(
        self,
        roots: Callable[[], Iterable[tuple[str, Any]]],
        ignore: Callable[[], Iterable[Any]] = tuple,
        *,
        is_data: bool = False,
    ) -> None:
        self._roots, self._ignore, self._is_data = roots, ignore, is_data
        self._reported: set[str] = set()
        self._rewound: dict[Place, Any] = {}
        self._late: dict[Place, Any] = {}
        self._owners: set[str] = set()
        self._baseline: dict[Place, Any] = {}
        self._first: dict[Place, Any] = {}
        self._ids: dict[Place, int] = {}
        self._replaced: set[Place] = set()
        self._known: _Known | None = None
        self._refers: dict[Place, Reference] = {}
        self._created: set[Place] = set()
        self._registered: set[str] = set()
        self.begun = False

    @timed_guard("hidden state, at the start")
    def begin(self, restored: Entries = ()) -> None:  # type: ignore[assignment]
        """Remember the values with which a run begins, except for those that were restored."""
        apart = {(owner, key) for owner, key, _ in restored} if self.begun else set()
        found, self.begun = self.search(), True
        if not found.complete:
            _log.warning(
                f"the data or the model of this run holds more than {MAX_VALUES:,} values: state "
                "beyond them is not saved, so results after a resume may differ; check with "
                "'stoker prove'"
            )
        self._owners.update(found.owners)
        self._registered |= found.registered
        if self._known is None:
            self._known = _Known(found.objects)
        for place, reference in found.references.items():
            self._refers.setdefault(place, reference)
        for place, value in found.values.items():
            if place not in apart and not isinstance(value, RNGS):
                self._baseline[place] = signature(value)
                self._first[place] = _saved_if_small(value)
                self._ids.setdefault(place, id(value))

    def search(self) -> Found:
        """Return the values as they are now."""
        known = None if self._known is None else self._known.names()
        return search(self._roots(), self._ignore(), known)

    @timed_guard("hidden state, at the start")
    def report_unsavable(self) -> None:
        """Report what is known not to be savable before it changes."""
        found = self.search()
        for place, value in found.values.items():
            if _advances(value, found):
                self._report(place, value, _fix_of(value))
            elif isinstance(value, CACHES) and keeps_random_results(value):
                self._report(place, value, "make the results a function of the arguments")
            elif isinstance(value, random.SystemRandom):
                self._report(place, value, "use random.Random(seed)")
        for path, function in found.functions.items():
            if "os" in facts_of(function).draws:
                self._warn(
                    (path, None),
                    f"{path} draws random numbers from the operating system, which no seed "
                    "repeats: results after a resume may differ; use random.Random(seed)",
                )

    @timed_guard("hidden state, per save")
    def capture(self) -> Entries:
        """Return the values that have changed since the run began, and all generators."""
        entries: Entries = []
        found = self.search()
        for place, value in found.values.items():
            if type(value) in SCALAR_TYPES:
                if self._has_changed(place, value):
                    entries += self._captured(found, place, value)
            elif _advances(value, found):
                if not _is_renewed(place, found):
                    self._report(place, value, _fix_of(value))
            elif isinstance(value, RNGS) or self._has_changed(place, value):
                entries += self._captured(found, place, value)
        for place, reference in found.references.items():
            entries += self._captured_reference(found, place, reference)
        for name in sorted(found.registered - self._registered):
            self._warn(
                (name, None),
                f"{name} was registered during training, and cannot be saved: a checkpoint that "
                "has it does not fit the model of a resumed run, so register it in __init__",
            )
        return entries

    def restore(self, entries: Entries) -> None:
        """Restore captured values, and others that have changed to where the run began."""
        found = self.search()
        saved = {(owner, key) for owner, key, _ in entries}
        for place in self._created - saved:
            if place in found.values and place[0] in found.owners:
                _delete(found.owners[place[0]], place[1])
        for place, reference in self._refers.items():
            if place not in saved and found.references.get(place, reference) != reference:
                self._put(found, place, {"object": reference.name}, None)
        self._put_first(found, saved)
        self._put_all(found, entries)

    def _put_first(self, found: Found, saved: Container[Place]) -> None:
        """Restore the values with which the run began, apart from those that were saved."""
        for place, first in self._first.items():
            if place in saved or place not in found.values:
                continue
            value = found.values[place]
            if is_iterator(value):  # this pass has begun already
                continue
            if signature(value) == self._baseline[place] or self._was_created(place, value):
                continue
            if first is not _MISSING:
                self._put(found, place, first, value)
            elif not _is_harmless_cache(value, found):
                self._report(place, value, "keep it small")

    def _put_all(self, found: Found, entries: Entries) -> None:
        """Restore entries; values that several places share come last."""
        held: set[int] = set()
        for owner, key, value in sorted(entries, key=_is_shared):
            place = owner, key
            current = found.values.get(place, _MISSING)
            if _tag(value) == "replaced":
                self._replaced.add(place)
                value, current = value["replaced"], _MISSING  # noqa: PLW2901
            elif id(current) in held and not isinstance(current, RNGS):
                current = _MISSING  # was shared by two places at first, and is not any more
            held.add(id(current))
            if place not in self._baseline and place not in self._refers:
                self._created.add(place)
            self._put(found, place, value, current)

    def rewind(self, entries: Entries) -> None:
        """Restore the state at the beginning of a pass, which is then read again."""
        self.restore(entries)
        self._rewound = signatures(self.search(), rngs=True)

    def settle(self, entries: Entries) -> None:
        """Restore what was captured within a pass, apart from what reading it again has changed.

        Workers read ahead: what the sampler has changed by then is ahead of the batches.
        """
        now = signatures(found := self.search(), rngs=True)
        kept = [
            entry
            for entry in entries
            if now.get((entry[0], entry[1])) == self._rewound.get((entry[0], entry[1]))
        ]
        self._put_all(found, kept)

    def digests(self) -> dict[str, str]:
        """Return a text for every value that differs if it does, by a name to show to the user."""
        return {
            f"{place[0]}: {place[1]} ({type(value).__name__})": text_of(value)
            for place, value in self.search().values.items()
            if not is_iterator(value)
        }

    def _has_changed(self, place: Place, value: Any) -> bool:
        now = signature(value)
        if place[0] in self._owners and not self._was_created(place, value):
            return bool(now != self._baseline.get(place, _MISSING))
        return bool(self._late.setdefault(place, now) != now)

    def _was_created(self, place: Place, value: Any) -> bool:
        """Return whether an object such as a file was None at first, and will be again."""
        if value is None or self._first.get(place, _MISSING) is not None or is_value(value):
            return False
        return is_opaque(value) and codec_of(value) is None

    def _captured(self, found: Found, place: Place, value: Any) -> Entries:
        if place[0] not in self._owners:
            self._report(place, value, "create it before training begins")
            return []
        if place in found.addressed:
            self._report(place, value, "use keys that are the same in each process, not id()")
            return []
        try:
            saved = _encode(value)
            if type(value) in _REPLACEABLE and self._was_replaced(place, value):
                saved = {"replaced": saved}
            return [[*place, saved]]
        except (TypeError, ValueError, NotImplementedError):
            if not _is_harmless_cache(value, found):
                fix = "make it a function of the index, or keep only a few plain values"
                self._report(place, value, fix)
            return []

    def _was_replaced(self, place: Place, value: Any) -> bool:
        """Return whether a place had another array or container when the run began."""
        return place in self._replaced or self._ids.get(place, id(value)) != id(value)

    def _captured_reference(self, found: Found, place: Place, now: Reference) -> Entries:
        """Return which object an attribute refers to, if that is another one than at first."""
        if place[0] not in self._owners:
            return []
        first = self._refers.get(place)
        if now.name is not None:
            return [] if first == now else [[*place, {"object": now.name}]]
        is_other = first is not None and first.kind != now.kind
        if is_other or self._is_new_object(found, place, first):
            before = first.kind if first else None
            self._warn(
                place,
                f"{name_of(place)} was {before} and is a new {now.kind}, which cannot be "
                "saved: results after a resume may differ; create it before training begins, or "
                "check with 'stoker prove'",
            )
        return []

    def _is_new_object(self, found: Found, place: Place, first: Reference | None) -> bool:
        """Return whether a place has an object with values that no saved value belongs to."""
        if first is None and place[1] in _counted(found):
            return True
        path = name_of(place)
        if not isinstance(place[1], str) or path in self._owners:
            return False
        below = (f"{path}.", f"{path}:", f"{path} ")
        if not any(owner == path or owner.startswith(below) for owner, _ in found.values):
            return False
        is_own = any(place[1] in facts_of(one).sets for one in found.functions.values())
        return first is not None or not (self._is_data and is_own and _is_deterministic(found))

    def _put(self, found: Found, place: Place, saved: Any, current: Any) -> None:
        owner = found.owners.get(place[0], _MISSING)
        try:
            if owner is _MISSING:
                raise TypeError
            if _tag(saved) == "object":
                _set(owner, place[1], found.objects[saved["object"]])
            elif _tag(saved) == "same":
                first, key = saved["same"]
                _set(owner, place[1], _get(found.owners[first], key))
            else:
                _restore_value(owner, place[1], current, saved)
        except (TypeError, ValueError, AttributeError, KeyError, IndexError, RuntimeError):
            self._warn(
                place,
                f"resume: the saved value of {name_of(place)} could not be restored, because the "
                "object that held it is not there or is of another kind: results may differ from "
                "those of an uninterrupted run",
            )

    def _report(self, place: Place, value: Any, fix: str) -> None:
        self._warn(
            place,
            f"{name_of(place)} ({type(value).__name__}) changes during training and cannot be "
            f"saved: results after a resume may differ; {fix}, or check with 'stoker prove'",
        )

    def _warn(self, place: Place, message: str) -> None:
        name = name_of(place)
        if name not in self._reported:
            self._reported.add(name)
            _log.warning(message, ranks=None)


class _Known:
    """The objects with which a run began, by the paths at which they were found."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self._objects = [(path, _weak(value)) for path, value in objects.items()]

    def names(self) -> dict[int, str]:
        """Return the paths of those that are still there, by id."""
        living = ((path, reference()) for path, reference in self._objects)
        return {id(value): path for path, value in living if value is not None}


def _counted(found: Found) -> set[Any]:
    """Return the names that functions set from their own value."""
    return set().union(*(facts_of(one).counts for one in found.functions.values()))


def _delete(owner: Any, key: Any) -> None:
    """Remove an attribute or an item that was not there when the run began."""
    with suppress(AttributeError, KeyError, TypeError):
        if isinstance(owner, dict):
            del owner[key]
        elif not isinstance(owner, list | deque | CellType | ValuesByPosition):
            (type if isinstance(owner, type) else object).__delattr__(owner, key)


def _weak(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:  # such as an object with __slots__
        return lambda: value


def _tag(saved: Any) -> str:
    return _tagged(saved)[0] if isinstance(saved, dict) and saved else ""


def _is_shared(entry: list[Any]) -> bool:
    return _tag(entry[2]) == "same"


def _get(owner: Any, key: Any) -> Any:
    """Return what a place holds."""
    if isinstance(owner, CellType):
        return owner.cell_contents
    if isinstance(owner, dict | list | tuple | deque):
        return owner[key]
    return vars(owner)[key] if isinstance(owner, type) else getattr(owner, key)


def _advances(value: Any, found: Found) -> bool:
    """Return whether reading a value moves a position that cannot be saved from outside."""
    if is_open_for_reading(value):
        called = set().union(*(facts_of(one).called for one in found.functions.values()))
        is_read = not hasattr(type(value), "read_byte") or called & {
            "read",
            "readline",
            "read_byte",
        }
        return bool(is_read) and "seek" not in called
    return is_iterator(value)


def _is_renewed(place: Place, found: Found) -> bool:
    """Return whether each pass begins with a new iterator here."""
    package = str(type(found.owners.get(place[0])).__module__).partition(".")[0]
    if is_library(package) and package not in sys.stdlib_module_names:
        return True
    begins = (one for path, one in found.functions.items() if path.endswith(".__iter__"))
    return any(place[1] in facts_of(one).renews for one in begins)


def _is_harmless_cache(value: Any, found: Found) -> bool:
    """Return whether a value only keeps results that do not depend on when they are computed."""
    if isinstance(value, CACHES):
        return not keeps_random_results(value)
    return isinstance(value, dict) and _is_deterministic(found)


def _is_deterministic(found: Found) -> bool:
    """Return whether nothing that was found draws or counts, so that a cache holds no state."""
    facts = [facts_of(function) for function in found.functions.values()]
    has_rng = any(isinstance(value, RNGS) for value in found.values.values())
    return not has_rng and not any(one.draws or one.counts for one in facts)


# Encode


def _saved_if_small(value: Any) -> Any:
    """Return the encoded value, or a marker if keeping it would cost much."""
    if isinstance(value, SCALARS):
        return value
    if is_dense(value) and value.nbytes > MAX_HASHED[Tensor]:
        return _MISSING
    if is_container(value) and (len(value) > MAX_ITEMS or not is_plain(value)):
        return _MISSING
    if leaves_of(value) is not None:
        return _MISSING
    try:
        return _encode(value)
    except (TypeError, ValueError):
        return _MISSING


def _encode(value: Any) -> Any:
    """Return a copy of a value as a tree that a checkpoint can hold.

    Raises:
        TypeError: the value cannot be saved.
    """
    if isinstance(value, (*RNGS, Same, Enum)):
        return _encode_link(value)
    if is_dense(value):
        return _encode_array(value)
    if type(value) in SCALAR_TYPES or isinstance(value, np.generic):
        return value
    if is_container(value):
        return _encode_container(value)
    if (codec := codec_of(value)) is None:
        raise TypeError
    return {codec: _encode(CODECS[codec].save(value))}


def _encode_array(value: Any) -> Any:
    is_array = isinstance(value, np.ndarray)
    if value.nbytes > _MAX_SAVED or (is_array and value.dtype.hasobject):
        raise ValueError
    if is_array and (value.dtype.kind in "VMm" or value.dtype.char in "gG"):
        return {"records": np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)}
    return _copy(value)


def _encode_link(value: Any) -> dict[str, Any]:
    if isinstance(value, Same):
        return {"same": list(value.place)}
    if isinstance(value, Enum):
        return {"flag": value.value} if isinstance(value, Flag) else {"enum": value.name}
    return {"rng": rng_state(value)}


def _encode_container(value: Any) -> Any:
    if isinstance(value, list) and len(value) > 64 and (array := _as_array(value)) is not None:
        return {"numbers": array}
    if isinstance(value, dict) and len(value) > 64:
        table = [_as_array(list(value)), _as_array(list(dict.values(value)))]
        if all(part is not None for part in table):
            return _with_kind({"table": table}, value)
    if len(value) > MAX_ITEMS or not is_plain(value) or _nbytes(value) > _MAX_IN_CONTAINER:
        raise ValueError
    if isinstance(value, dict):
        pairs = [[_encode(key), _encode(item)] for key, item in dict.items(value)]
        return _with_kind({"dict": pairs}, value)
    kind: Any = next(kind for kind in CONTAINERS if isinstance(value, kind))
    return kind(map(_encode, value))


def _with_kind(saved: dict[str, Any], value: Any) -> dict[str, Any]:
    """Add the class of a dict, for one that is not there yet when it is restored."""
    kind = type(value).__name__
    if type(value) is defaultdict:
        kind = f"defaultdict {getattr(value.default_factory, '__name__', None)}"
    return {**saved, "kind": kind} if kind in _DICTS else saved


def _copy(array: Any) -> Any:
    return array.detach().clone() if isinstance(array, Tensor) else np.array(array, subok=False)


def _nbytes(value: Any) -> int:
    """Return the size of the arrays in a container."""
    if isinstance(value, ARRAYS):
        return int(value.nbytes)
    if isinstance(value, dict):
        return sum(map(_nbytes, dict.values(value)))
    return sum(map(_nbytes, value)) if is_container(value) else 0


def _as_array(value: list[Any]) -> "np.ndarray[Any, Any] | None":
    """Return a list of ints or of floats as an array, which is far smaller than JSON."""
    kinds = set(map(type, value))
    if len(value) > MAX_NUMBERS or kinds not in ({int}, {float}):
        return None
    try:
        return np.array(value, dtype=np.int64 if kinds == {int} else np.float64)
    except OverflowError:
        return None


# Restore


def _tagged(saved: dict[str, Any]) -> tuple[str, Any]:
    return next((tag, content) for tag, content in saved.items() if tag != "kind")


def _restore_value(owner: Any, key: Any, current: Any, saved: Any) -> None:
    """Set a value to what was saved: in place if it is mutable, so that it stays shared."""
    tag, content = _tagged(saved) if isinstance(saved, dict) else ("", saved)
    if tag == "rng":
        if not isinstance(current, RNGS):
            current = _new_rng(content)
            _set(owner, key, current)
        _set_rng_state(current, content)
    elif tag in ("enum", "flag"):
        if current is _MISSING:
            current = getattr_static(owner, key)  # that of the class
        kind: Any = type(current)
        _set(owner, key, kind[content] if tag == "enum" else kind(content))
    elif tag == "records":
        current[...] = np.frombuffer(content.tobytes(), current.dtype).reshape(current.shape)
    elif tag in CODECS and (restore := CODECS[tag].restore) is not None:
        restore(current, _decode(content))
    elif _fits(current, saved):
        if isinstance(current, Tensor):
            current.detach().data.copy_(saved)
        else:
            current[...] = saved
    elif not _refilled(current, value := _decode(saved, type(current))):
        _set(owner, key, value)


def _fits(current: Any, saved: Any) -> bool:
    kinds = (Tensor, np.ndarray)
    same = any(isinstance(current, kind) and isinstance(saved, kind) for kind in kinds)
    return same and current.shape == saved.shape and current.dtype == saved.dtype


def _refilled(current: Any, value: Any) -> bool:
    """Replace the contents of a container, and of those in it; return whether that is possible."""
    if isinstance(value, dict) and isinstance(current, dict):
        merged = {key: _merged(current.get(key), item) for key, item in value.items()}
        kind = OrderedDict if isinstance(current, OrderedDict) else dict
        kind.clear(current)
        kind.update(current, merged)
    elif isinstance(value, set) and isinstance(current, set):
        current.clear()
        current.update(value)
    elif isinstance(value, list | deque) and isinstance(current, type(value)):
        merged_items = [_merged(*pair) for pair in zip(current, value)]  # noqa: B905
        current.clear()
        current.extend([*merged_items, *list(value)[len(merged_items) :]])
    else:
        return False
    return True


def _merged(current: Any, value: Any) -> Any:
    """Return the current container with the contents of ``value``, so that it stays shared."""
    return current if _refilled(current, value) else value


def _decode(saved: Any, kind: type | None = None) -> Any:
    """Return the value that `_encode` saved; a named tuple if the current value is one."""
    if isinstance(saved, dict):
        tag, content = _tagged(saved)
        if tag not in CODECS:
            value = _DECODERS[tag](content)
            return _DICTS[saved["kind"]](value) if "kind" in saved else value
        if (build := CODECS[tag].build) is None:
            raise TypeError
        return build(_decode(content))
    if isinstance(saved, ARRAYS):
        return _copy(saved)
    if not isinstance(saved, CONTAINERS):
        return saved
    items = map(_decode, saved)
    if isinstance(saved, tuple) and kind is not None and hasattr(kind, "_make"):
        return kind._make(items)
    return type(saved)(items)


_DICTS: dict[str, Callable[[Any], Any]] = {
    "OrderedDict": OrderedDict,
    "Counter": Counter,
    **{
        f"defaultdict {kind.__name__}": partial(defaultdict, kind)
        for kind in (int, float, str, bool, list, dict, set)
    },
}
"""Classes of dicts that a checkpoint names."""

_DECODERS: dict[str, Callable[[Any], Any]] = {
    "numbers": lambda array: array.tolist(),
    "table": lambda parts: dict(zip(*(part.tolist() for part in parts), strict=True)),
    "dict": lambda pairs: {_decode(key): _decode(value) for key, value in pairs},
}


def _new_rng(state: Any) -> Any:
    if isinstance(state, Tensor):
        return torch.Generator()
    if isinstance(state, list):
        return random.Random()
    bits = getattr(np.random, state["bit_generator"])()
    return np.random.RandomState(bits) if "has_gauss" in state else np.random.Generator(bits)


def _set_rng_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        version, keys, gauss = state
        generator.setstate((version, tuple(keys.tolist()), gauss))
    elif isinstance(generator, np.random.Generator):
        set_bit_state(generator.bit_generator, state)
    else:
        generator.set_state(state)


def _set(owner: Any, key: Any, value: Any) -> None:
    if isinstance(owner, CellType):
        owner.cell_contents = value
    elif isinstance(owner, nn.Module) and isinstance(value, nn.Module) and key in owner._modules:
        owner._modules[key] = value
    elif isinstance(owner, dict | list | deque | ValuesByPosition):
        owner[key] = value
    elif isinstance(owner, type):
        type.__setattr__(owner, key, value)
    elif isinstance(owner, threading.local):
        threading.local.__setattr__(owner, key, value)
    else:
        object.__setattr__(owner, key, value)


def _fix_of(value: Any) -> str:
    if isinstance(value, torch.optim.Optimizer):
        return "pass all optimizers to the Engine, as a mapping"
    return "keep the position as an integer instead, or create the iterator in each pass"
