"""Load files of torch.save without executing code of the file."""

import pickle
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from stoker.core.errors import ConfigError


class Unloaded:
    """Stands for an object of a class that is not loaded; it ignores what the file says of it."""

    def __new__(cls, *_: Any, **__: Any) -> "Unloaded":
        """Return an empty object, whatever the arguments."""
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        """Ignore the attributes."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Ignore the items of a mapping."""

    def append(self, value: Any) -> None:
        """Ignore an item of a sequence."""

    def extend(self, values: Iterable[Any]) -> None:
        """Ignore the items of a sequence."""


def unpickle(path: Path, *, trust: bool) -> Any:
    """Load a file of torch.save.

    Without ``trust``, it returns tensors and plain values, and an `Unloaded` in place of any object
    of another class.

    Raises:
        ConfigError: it cannot be loaded, or only by executing code.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unsafe files raise an error below
            if trust:
                return torch.load(path, map_location="cpu", weights_only=False)
            with safe_globals([(_stand_in(name), name) for name in _other_classes(path)]):
                return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # arbitrary bytes can raise anything
        raise ConfigError(_reason(path, error, trust)) from error


def _other_classes(path: Path) -> list[str]:
    """Return the names in a pickle that torch does not load by itself."""
    try:
        return get_unsafe_globals_in_checkpoint(path)
    except Exception:  # not a zip file, as an old version of torch wrote; loading it says the rest
        return []


def _stand_in(name: str) -> type[Unloaded]:
    return type(name.rpartition(".")[2], (Unloaded,), {"__module__": name.rpartition(".")[0]})


def unloaded_in(value: Any) -> str | None:
    """Return the name of a class of which a value has an object that was not loaded."""
    if isinstance(value, Unloaded) or (isinstance(value, type) and issubclass(value, Unloaded)):
        kind = value if isinstance(value, type) else type(value)
        return f"{kind.__module__}.{kind.__name__}"
    inside = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list | tuple | set):
        return None
    return next((name for one in inside if (name := unloaded_in(one)) is not None), None)


def refusal(path: Path, what: str) -> str:
    """Return the sentence for a file that only ``--trust`` reads."""
    return (
        f"'{path}' is {what}, which can execute arbitrary code when loaded: pass --trust if you "
        "trust its source"
    )


def _reason(path: Path, error: Exception, trust: bool) -> str:
    """Return why a file was rejected."""
    with path.open("rb") as file:
        is_saved = file.read(2) in (b"PK", b"\x80\x02", b"\x80\x04")
    if not is_saved and not trust:
        return f"torch cannot load '{path}': it is not a file of torch.save"
    message = str(error)
    needed = re.search(r"GLOBAL ([\w.]+)", message)
    if not trust and "TorchScript" in message:
        return refusal(path, "a TorchScript program")
    if not trust and needed:
        return refusal(path, f"a pickle that needs '{needed[1]}'")
    if not trust and isinstance(error, pickle.UnpicklingError):
        return refusal(path, "a pickle with more than weights")
    reason = " ".join(f"{type(error).__name__} {message}".split())
    return f"torch cannot load '{path}': {reason[:200]}"
