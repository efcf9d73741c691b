"""What a YAML may name, import, read and write: the list, its own modules, and ``--allow``."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType
from typing import Any

from stoker.config.allowed import GUARDED, PACKAGES, is_listed, listed
from stoker.config.names import UnknownNameError, forget_namesakes, locate, split
from stoker.storage import local_path, store_url

_PLAIN = (type(None), bool, int, float, str, bytes, list, tuple, dict, set, frozenset)
_DEFINED = (type, FunctionType, BuiltinFunctionType, MethodType)


class Override(str):
    """The origin of a value that the user typed on the command line."""

    __slots__ = ()


class Trust:
    """The limits of one YAML config.

    Args:
        folders: folders of its own modules; the first is that of the file.
        allow: what the user allows in addition: prefixes of dotted names, and paths.
    """

    def __init__(self, folders: Sequence[Path], allow: Sequence[str] = ()) -> None:
        self.folders = list(folders)
        self._prefixes = [f"{one.rstrip('.')}." for one in allow if not is_path(one)]
        paths = [one for one in allow if is_path(one)]
        self._urls = [url for one in paths if (url := store_url(one, "--allow")) is not None]
        self._paths = [
            Path(one).expanduser().resolve() for one in paths if store_url(one, "--allow") is None
        ]
        self._importing = False
        self.own: set[str] = set()
        """Its own modules that it has named, which run code."""

    @property
    def runs_code(self) -> bool:
        """Whether code other than that on the list may run."""
        return bool(self.own or self._prefixes)

    def allows(self, name: str) -> bool:
        """Return whether the user has allowed a dotted name."""
        return f"{name}.".startswith(tuple(self._prefixes))

    def find(self, name: str) -> Any:
        """Return the object that the config names.

        Raises:
            UnknownNameError: it does not exist, or may not be named.
        """
        if "." in name:
            split(name)
        with self.importable():
            return self._find(name)

    def _find(self, name: str) -> Any:
        if self.allows(name):
            return locate(name, through_modules=False)
        top = name.partition(".")[0]
        if top in PACKAGES and "." in name:
            try:
                return listed(name)
            except LookupError:
                raise self._refusal(name) from None
        if "." in name and ".__" not in name and self.is_own(top):
            return self._find_own(name, top)
        raise self._refusal(name)

    def is_own(self, top: str) -> bool:
        """Return whether a folder of the config has a module of this name."""
        if top in PACKAGES or top in sys.stdlib_module_names:
            return False
        return any((f / f"{top}.py").is_file() or (f / top).is_dir() for f in self.folders)

    def check_import(self, name: Any) -> None:
        """Reject a module of ``imports`` that is neither the config's own nor allowed."""
        if not isinstance(name, str) or not all(one.isidentifier() for one in name.split(".")):
            raise UnknownNameError(f"{name!r} is not the name of a module")
        top = name.partition(".")[0]
        if self.is_own(top):
            self.own.add(top)
        elif not self.allows(name):
            raise self._refusal(name)

    def check_made(self, thing: Any, name: str) -> None:
        """Reject a class of a short name that is not on the list; registered ones are."""
        package = str(getattr(thing, "__module__", "")).partition(".")[0]
        if package in PACKAGES and not is_listed(thing) and not self.allows(name):
            raise self._refusal(name)

    def _find_own(self, name: str, top: str) -> Any:
        self.own.add(top)
        thing = locate(name, through_modules=False)
        loaded = sys.modules.get(top)
        places = [getattr(loaded, "__file__", None) or "", *getattr(loaded, "__path__", [])]
        if not any(is_inside(place, self.folders) for place in places if place):
            raise self._refusal(name)
        if not self._is_harmless(thing):
            raise self._refusal(name)
        return thing

    def _is_harmless(self, thing: Any) -> bool:
        """Return whether an object of an own module is defined there, on the list, or plain."""
        if isinstance(thing, partial):
            return self._is_harmless(thing.func)
        if isinstance(thing, _PLAIN) or is_listed(thing):
            return True
        kind = thing if isinstance(thing, _DEFINED) else type(thing)
        module = str(getattr(kind, "__module__", None) or "")
        return self.is_own(module.partition(".")[0]) or is_listed(kind)

    def _refusal(self, name: str) -> UnknownNameError:
        top = name.partition(".")[0]
        flag = name if top in PACKAGES else f"{top}."
        return UnknownNameError(
            f"'{name}' may not be named by a YAML file: it may name modules, losses, optimizers, "
            "schedulers, data and metrics of torch, torchmetrics and stoker, and modules in its "
            f"own folder; if you trust it, add --allow {flag}"
        )

    # Paths

    def check_path(self, value: Any, what: str, inside: Iterable[Path] = ()) -> None:
        """Reject a path outside the given folders that the user has not allowed.

        Raises:
            UnknownNameError: it is outside; the message says how to allow it.
        """
        try:
            url = store_url(value, what)
            path = Path() if url else local_path(value.replace("\\${", "${")).resolve()
            hash(os.fsencode(path))
        except (AttributeError, TypeError, ValueError, OSError, RuntimeError):
            raise UnknownNameError(f"{what} is {value!r}, expected a path") from None
        if url is not None:
            is_allowed = any(f"{url}/".startswith(f"{one}/") for one in self._urls)
        else:
            is_allowed = is_inside(path, [*inside, *self._paths])
        if not is_allowed:
            raise UnknownNameError(
                f"{what} is '{value}', which a YAML file may not choose; if you trust it, add "
                f"--allow {url or path}"
            )

    def refused_object(self, thing: Any, name: str) -> str:
        """Return why a class may not be passed to a listed call, or an empty string.

        Such a call could create it with arguments that are not checked.
        """
        own = is_listed(thing) and thing.__module__.startswith(("stoker.hooks", "stoker.events"))
        return f"{name} may be called, but not passed" if own and not self.allows(name) else ""

    def refused_argument(self, target: Any, name: str, key: str, value: Any) -> str:
        """Return why an argument of a listed call is refused, or an empty string."""
        if self.allows(name) or not is_listed(target):
            return ""
        if key == "out":
            return f"{name} may not be called with 'out' by a YAML file"
        if key not in GUARDED or value is None or not target.__module__.startswith("stoker."):
            return ""
        if key == "uri":
            return f"'{key}' may not be set by a YAML file; if you trust it, add --allow {name}"
        try:
            self.check_path(value, f"'{key}'")
        except UnknownNameError as error:
            usual = "next to the data" if key == "cache" else "into the run folder"
            return f"{error}; without '{key}', {name} writes {usual}"
        return ""

    # Imports

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Make the config's own modules importable, and nothing else in its folder.

        Neither the folder of the config nor the current one is on ``sys.path`` inside the block.
        A module there is found if the config names it, or if another module there imports it.
        """
        if self._importing:
            yield
            return
        folders = [*self.folders, Path.cwd()]
        for folder in dict.fromkeys(folders):
            forget_namesakes(folder)
        before = list(sys.path)
        sys.path[:] = [one for one in before if Path(one).resolve() not in folders]
        front, back = _OwnFinder(self, folders), _AllowedFinder(self, folders)
        sys.meta_path.insert(0, front)
        sys.meta_path.append(back)
        self._importing = True
        try:
            yield
        finally:
            self._importing = False
            sys.meta_path.remove(front)
            sys.meta_path.remove(back)
            sys.path[:] = [*(one for one in sys.path if one not in before), *before]


class _OwnFinder:
    """Finds modules beside the config that it names, or that its own modules import."""

    def __init__(self, trust: Trust, folders: list[Path]) -> None:
        self._trust, self._folders = trust, folders

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if path is not None or name in PACKAGES or name in sys.stdlib_module_names:
            return None
        if name in self._trust.own:
            return _spec(name, self._trust.folders)
        if self._trust.runs_code and _is_code_of(self._folders, sys._getframe(1)):
            return _spec(name, self._folders)
        return None


class _AllowedFinder(_OwnFinder):
    """Finds allowed modules in the folder of the config or the current one, after all others."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        top = name.partition(".")[0]
        named = any(f"{top}." == f"{one.partition('.')[0]}." for one in self._trust._prefixes)
        return _spec(name, self._folders) if path is None and named else None


def _spec(name: str, folders: list[Path]) -> ModuleSpec | None:
    spec = PathFinder.find_spec(name, [str(folder) for folder in folders])
    if spec is not None and spec.loader is None and PathFinder.find_spec(name) is not None:
        return None  # a folder without __init__.py does not hide an installed package
    return spec


def _is_code_of(folders: list[Path], frame: FrameType | None) -> bool:
    """Return whether an import comes from a file in the folders that is not installed there."""
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("importlib"):
        frame = frame.f_back
    file = frame.f_code.co_filename if frame is not None else ""
    installed = [Path(one) for one in sys.path if is_inside(one, folders)]
    return is_inside(file, folders) and not is_inside(file, installed)


def is_inside(path: str | Path, folders: Iterable[Path]) -> bool:
    """Return whether a path is one of the folders or below one."""
    path = Path(path)
    return any(folder in (path, *path.parents) for folder in folders)


def is_path(text: str) -> bool:
    """Return whether a value of ``--allow`` is a path, not the prefix of a dotted name."""
    return (
        any(sign in text for sign in {"/", os.sep, "~"})
        or text in (".", "..")
        or text.endswith((".yaml", ".yml"))
    )
