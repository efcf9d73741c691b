"""Dotted names: from an object to its name and back."""

import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from stoker.core.errors import did_you_mean

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


def locate(name: str, *, through_modules: bool = True) -> Any:
    """Import and return the object with a dotted name.

    Args:
        name: the dotted name.
        through_modules: whether an attribute on the way may be another module, as in
            ``mine.os.path``; submodules are always found.

    Raises:
        UnknownNameError: there is no such module or no such name in it.
    """
    parts = split(name)
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
            if isinstance(thing, ModuleType) and not through_modules:
                raise UnknownNameError(f"'{name}' leads through another module, '{part}'")
        return thing
    raise UnknownNameError(f"there is no module '{parts[0]}' (for '{name}')")


def split(name: str) -> list[str]:
    """Return the parts of a dotted name."""
    parts = name.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise UnknownNameError(
            f"'{name}' is not a dotted name: expected one such as 'torch.nn.Linear'"
        )
    return parts


@contextmanager
def importing_from(folders: Iterable[Path]) -> Iterator[None]:
    """Make modules in these folders importable inside the block, before others of the same name."""
    added = [str(folder) for folder in folders if str(folder) not in sys.path]
    sys.path[:0] = added
    for folder in added:
        forget_namesakes(Path(folder))
    try:
        yield
    finally:
        for path in added:
            if path in sys.path:
                sys.path.remove(path)


def forget_namesakes(folder: Path) -> None:
    """Unload modules of another config's folder that have the name of one in this folder."""
    for file in folder.glob("*.py"):
        loaded = getattr(sys.modules.get(file.stem), "__file__", None)
        if loaded is None or Path(loaded) == file or file.stem in sys.stdlib_module_names:
            continue
        root = Path(loaded).parent
        root = root.parent if Path(loaded).name == "__init__.py" else root
        if str(root) not in sys.path:
            del sys.modules[file.stem]
