"""Reading config files: Python with `L`, or YAML."""

import ast
import importlib.machinery
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from stoker.config.lazy import Lazy, Section, children
from stoker.config.names import UnknownNameError, importing_from
from stoker.config.other_trainers import KEYS
from stoker.config.trust import Trust
from stoker.config.yaml_text import check_size, read, settled
from stoker.core.errors import ConfigError

_PACKAGE = "_stoker_config_"
_numbers = count()
_DATA = (dict, list, tuple, str, int, float, bool, type(None))


_LARGEST = 4_000_000
_MOST_FILES = 200


def read_yaml(
    path: Path,
    allow: Sequence[str] = (),
    including: tuple[Path, ...] = (),
    number: Iterator[int] | None = None,
) -> Section:
    """Read a YAML file on top of the files that its ``defaults`` lists.

    Those are in the folder of the first file or below it, or else the user allows them.

    Args:
        path: the file.
        allow: what the user allows.
        including: the files whose ``defaults`` lead to this one.
        number: counts the files that are read.
    """
    number = number or count(1)
    if next(number) > _MOST_FILES:
        raise ConfigError(f"{path.name}: defaults lead to more than {_MOST_FILES} files")
    path = path.resolve()
    if path in including:
        circle = " → ".join(one.name for one in (*including, path))
        raise ConfigError(f"{including[-1].name}: defaults include each other: {circle}")
    tree = read(_text_of(path), path.name)
    if tree is None:
        tree = Section(where=path.name)
    if not isinstance(tree, Section) or isinstance(tree, Lazy):
        raise ConfigError(
            f"{path.name}:1: a config must be a mapping such as 'model: …' and 'run: …'"
        )
    included = tree.pop("defaults", [])
    if isinstance(included, str):
        included = [included]
    if not isinstance(included, list) or not all(isinstance(one, str) for one in included):
        raise ConfigError(
            f"{tree.origin('defaults')}: defaults must be a list of files, such as [base.yaml], "
            f"got {included!r}"
        )
    merged = Section(where=tree.where)
    trust = Trust([(*including, path)[0].parent], allow)
    for name in included:
        place = tree.origin("defaults")
        try:
            trust.check_path(str(path.parent / name), f"{place}: defaults", trust.folders)
        except UnknownNameError as error:
            raise ConfigError(str(error)) from None
        file = path.parent / name
        if not file.is_file():
            raise ConfigError(f"{place}: defaults lists '{name}', which does not exist")
        merge(merged, read_yaml(file, allow, (*including, path), number))
    merge(merged, tree)
    check_size(merged, path.name)
    return merged


def merge(below: Section, above: Section) -> None:
    """Merge one section into another: mappings are merged, other values are replaced."""
    for key, value in above.items():
        old = below.get(key)
        if isinstance(old, Section) and isinstance(value, Section) and _merges(old, value):
            merge(old, value)
            if isinstance(value, Lazy) and isinstance(old, Lazy) and value.args:
                old.args = value.args
        else:
            below[key] = value
            below.origins[key] = above.origin(key)


def _merges(old: Section, new: Section) -> bool:
    """Return whether a mapping modifies the one below it instead of replacing it."""
    others = isinstance(old, Lazy) and not old.keys() & new.keys()
    if others and new and all(isinstance(value, Lazy) for value in new.values()):
        return False  # several named calls instead of one
    if isinstance(new, Lazy):
        return isinstance(old, Lazy) and old.target == new.target
    return "type" not in new or new["type"] == old.get("type")


def read_python(path: Path) -> Section:
    """Read a Python file: its public names that are nodes or plain data."""
    path = path.resolve()
    module = executed(path)
    lines = _assignments(path)
    public = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and (isinstance(value, _DATA) or name in KEYS)
    }
    tree: Section = settled(public)
    tree.where = path.name
    for name in tree:
        tree.origins[name] = f"{path.name}:{lines[name]}" if name in lines else path.name
        _set_places(tree[name], tree.origins[name])
    return tree


def _set_places(value: Any, place: str) -> None:
    """Record where plain Python data was written."""
    if isinstance(value, Section) and not value.where:
        value.where = place
    for _, item in children(value):
        _set_places(item, value.where if isinstance(value, Section) else place)


def executed(path: Path) -> ModuleType:
    """Execute a config file and return its module.

    The parent folders act as packages, so that ``from .base import model`` and
    ``from ..common import data`` work. If it fails, its module name and ``sys.path`` are restored;
    modules that it imported stay imported, because torch cannot be imported twice.
    """
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    try:
        code = compile(_text_of(path), str(path), "exec")
        with _restored_after_failure(path.stem), importing_from([path.parent, Path.cwd()]):
            module.__package__ = _packages_above(path)
            if path.stem not in sys.modules:
                sys.modules[path.stem] = module  # the __module__ of its classes
            exec(code, vars(module))
    except ConfigError:
        raise
    except Exception as error:
        place = f"{path.name}:{_line_of(error, path)}"
        raise ConfigError(f"{place}: {type(error).__name__}: {error}") from error
    return module


def _line_of(error: Exception, path: Path) -> int:
    """Return the innermost line of the file in the traceback."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno or 1
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno or 1 for f in reversed(frames) if f.filename == str(path)), 1)


def _packages_above(path: Path) -> str:
    """Create one package per parent folder and return the name of the innermost."""
    name = f"{_PACKAGE}{next(_numbers)}"
    for folder in reversed([path.parent, *path.parent.parents]):
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = package
        innermost, name = name, f"{name}.folder"
    return innermost


@contextmanager
def _restored_after_failure(stem: str) -> Iterator[None]:
    before, path = set(sys.modules), list(sys.path)
    try:
        yield
    except BaseException:
        for name in set(sys.modules) - before:
            if name.startswith(_PACKAGE) or name == stem:
                del sys.modules[name]
        sys.path[:] = path
        raise


def _assignments(path: Path) -> dict[str, int]:
    """Return the line of the last assignment to each name."""
    lines: dict[str, int] = {}
    for statement in ast.parse(path.read_text(encoding="utf-8-sig")).body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                lines[node.id] = node.lineno
    return lines


def _text_of(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST:
            raise ConfigError(f"{path.name} is larger than {_LARGEST // 10**6} MB")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path.name} is not a text file") from None
