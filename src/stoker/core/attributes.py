"""Read the attributes of objects without running their code."""

import functools
import threading
from contextlib import suppress
from typing import Any


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
