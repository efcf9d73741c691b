"""Dotted names: from an object to its name and back, and which names a YAML may use."""

import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stoker.core.errors import did_you_mean

ALLOWED = ("torch.nn.", "torch.optim.", "torch.utils.data.", "stoker.", "torchmetrics.")
"""What a YAML may name without --allow, besides ``torch.x`` and modules in its own folder."""

_RUNS_CODE = (
    "torch.utils.data.datapipes.",
    *(f"stoker.{part}." for part in ("config", "cli", "launch", "dialects", "testing")),
)
"""Exceptions that read or run other code; they need --allow."""

_OF_A_CONFIG = re.compile(r"^_stoker_config_\d+(\.folder)*\.")
"""The prefix of modules that a config imports relative to itself."""


def name_of(thing: Any) -> str:
    """Return the dotted name of a class, function or torch constant."""
    if type(thing).__module__ == "torch" and type(thing).__name__ in ("dtype", "memory_format"):
        return str(thing)
    owner = getattr(thing, "__self__", None)
    module = getattr(thing, "__module__", None) or getattr(owner, "__module__", None)
    name = getattr(thing, "__qualname__", None)
    if module is None or name is None:
        raise TypeError(f"{thing!r} has no name: a config describes calls of classes and functions")
    return f"{_shortest(_OF_A_CONFIG.sub('', module), name, thing)}.{name}"


def _shortest(module: str, name: str, thing: Any) -> str:
    """Return the outermost package that exports the object: torch.nn, not torch.nn.modules.x."""
    parts = module.split(".")
    for cut in range(1, len(parts)):
        package = ".".join(parts[:cut])
        if getattr(sys.modules.get(package), name, None) is thing:
            return package
    return module


def is_named(thing: Any) -> bool:
    """Return whether a config can refer to an object by name: a class, a function, a dtype."""
    constant = type(thing).__module__ == "torch" and type(thing).__name__ in (
        "dtype",
        "memory_format",
    )
    return constant or (callable(thing) and hasattr(thing, "__qualname__"))


class UnknownNameError(ValueError):
    """A dotted name that does not exist or may not be used."""


def locate(name: str) -> Any:
    """Import and return the object with a dotted name.

    Raises:
        UnknownNameError: there is no such module or no such name in it.
    """
    parts = name.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise UnknownNameError(
            f"'{name}' is not a dotted name: expected one such as 'torch.nn.Linear'"
        )
    for cut in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:cut])
        try:
            thing: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is not None and (module_name + ".").startswith(error.name + "."):
                continue
            raise
        for part in parts[cut:]:
            if not hasattr(thing, part):
                near = did_you_mean(part, [n for n in dir(thing) if not n.startswith("_")])
                where = getattr(thing, "__name__", module_name)
                raise UnknownNameError(f"'{where}' has no '{part}'{near}")
            thing = getattr(thing, part)
        return thing
    raise UnknownNameError(f"there is no module '{parts[0]}' (for '{name}')")


def check_allowed(name: str, allow: Iterable[str], folders: Iterable[Path]) -> None:
    """Reject a name that a YAML may not use, before its module is imported.

    Args:
        name: the dotted name.
        allow: further prefixes that the user allows.
        folders: folders of the config's own modules.
    """
    if any((name + ".").startswith(_dotted(prefix)) for prefix in allow):
        return
    top = name.partition(".")[0]
    own = any((f / f"{top}.py").is_file() or (f / top).is_dir() for f in folders)
    if not own and not _is_usual(name):
        raise UnknownNameError(
            f"'{name}' may not be named by a YAML file: it names torch.nn, torch.optim, "
            "torch.utils.data, stoker, torchmetrics and modules in its own folder; if you trust "
            f"it, add --allow {top}."
        )


def _is_usual(name: str) -> bool:
    parts = name.split(".")
    if any(part.startswith("_") for part in parts) or name.startswith(_RUNS_CODE):
        return False
    return name.startswith(ALLOWED) or (parts[0] == "torch" and len(parts) == 2)


def check_real_place(name: str, thing: Any, allow: Iterable[str], folders: Iterable[Path]) -> None:
    """Check where an object is really defined: ``torch.os.system`` is not part of torch."""
    if any((name + ".").startswith(_dotted(prefix)) for prefix in allow):
        return
    module = getattr(thing, "__module__", None)
    if module is None or module == "torch" or module.startswith("torch._C"):
        return  # a constant, or a built-in of torch that a public name led to
    real = f"{module}.{getattr(thing, '__qualname__', '')}".rstrip(".")
    if real.startswith(ALLOWED) and not real.startswith(_RUNS_CODE):
        return  # public names often live in a private module
    if real != name:
        check_allowed(real, allow, folders)


@contextmanager
def importing_from(folders: Iterable[Path]) -> Iterator[None]:
    """Make modules in these folders importable inside the block, before others of the same name."""
    added = [str(folder) for folder in folders if str(folder) not in sys.path]
    sys.path[:0] = added
    for folder in added:
        _forget_namesakes(Path(folder))
    try:
        yield
    finally:
        for path in added:
            if path in sys.path:
                sys.path.remove(path)


def _forget_namesakes(folder: Path) -> None:
    """Unload modules of another config's folder that have the name of one in this folder."""
    for file in folder.glob("*.py"):
        loaded = getattr(sys.modules.get(file.stem), "__file__", None)
        if loaded and Path(loaded) != file and str(Path(loaded).parent) not in sys.path:
            del sys.modules[file.stem]


def _dotted(prefix: str) -> str:
    return prefix if prefix.endswith(".") else prefix + "."
