"""Local files by path."""

import builtins
import logging
import os
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from stoker.core.errors import UnsupportedURLError

_log = logging.getLogger("libai.file_io")


class LazyPath(os.PathLike[str]):
    """A path that is computed when it is needed, once."""

    def __init__(self, func: Callable[[], str]) -> None:
        self._func = func
        self._value: str | None = None

    def __fspath__(self) -> str:
        self._value = self._value or self._func()
        return self._value

    def __getattr__(self, name: str) -> Any:
        if self._value is None:
            raise AttributeError(f"the path is not computed yet, so that it has no {name!r}")
        return getattr(self._value, name)

    def __getitem__(self, key: Any) -> Any:
        if self._value is None:
            raise TypeError("the path is not computed yet: call os.fspath first")
        return self._value[key]


def _new(function: Callable[[str, str], Any]) -> Callable[..., bool]:
    """Return an operation that makes its second path, which must not exist yet."""

    def make(source: str, target: str, overwrite: bool = False) -> bool:
        if os.path.lexists(target) and not overwrite:
            _log.error(f"'{target}' exists already")
            return False
        function(source, target)
        return True

    return make


def _opena(path: str, mode: str = "r", **kwargs: Any) -> Any:
    """Open a file to write; everything is written when it is closed."""
    if not set(mode) <= set("wab"):
        raise ValueError(f"opena writes: mode must be of 'w', 'a' and 'b', got {mode!r}")
    return builtins.open(path, mode, **kwargs)


_OPEN = "mode buffering encoding errors newline closefd opener"
_LOCAL: dict[str, tuple[Callable[..., Any], int, str]] = {
    "open": (builtins.open, 1, _OPEN),
    "opena": (_opena, 1, _OPEN),
    "get_local_path": (lambda path, force=False: path, 1, "force"),
    "exists": (os.path.exists, 1, ""),
    "isfile": (os.path.isfile, 1, ""),
    "isdir": (os.path.isdir, 1, ""),
    "ls": (os.listdir, 1, ""),
    "mkdirs": (lambda path: os.makedirs(path, exist_ok=True), 1, ""),
    "rm": (os.remove, 1, ""),
    "copy": (_new(shutil.copyfile), 2, "overwrite"),
    "copy_from_local": (_new(shutil.copyfile), 2, "overwrite"),
    "mv": (_new(shutil.move), 2, ""),
    "symlink": (_new(os.symlink), 2, ""),
}
"""For each operation on local files: the function, its number of paths, and its arguments."""


class PathManagerBase:
    """File operations for local paths; it is also its own `_native_path_handler`.

    They are ``open``, ``opena``, ``copy``, ``copy_from_local``, ``mv``, ``symlink``, ``exists``,
    ``isfile``, ``isdir``, ``ls``, ``mkdirs``, ``rm`` and ``get_local_path``.
    """

    def __init__(self) -> None:
        self._async_handlers: set[Any] = set()
        self._cwd: str | None = None
        self._strict = True

    @property
    def _native_path_handler(self) -> "PathManagerBase":
        return self

    def _get_path_with_cwd(self, path: Any) -> str:
        text = os.fspath(path)
        if "://" in text:
            raise UnsupportedURLError(
                f"'{text}' is not a local path: download it, and pass the path of the file"
            )
        return os.path.normpath(os.path.join(self._cwd or "", text))

    def __getattr__(self, name: str) -> Any:
        if name not in _LOCAL:
            raise AttributeError(f"{type(self).__name__} has no {name!r}: it opens local files")
        return partial(self._do, name)

    def _do(self, name: str, *args: Any, **kwargs: Any) -> Any:
        function, count, options = _LOCAL[name]
        known = {key: kwargs.pop(key) for key in options.split() if key in kwargs}
        self._check_kwargs(kwargs)
        return function(*map(self._get_path_with_cwd, args[:count]), *args[count:], **known)

    def _check_kwargs(self, kwargs: dict[str, Any]) -> None:
        if kwargs and self._strict:
            raise ValueError(f"there are no arguments {', '.join(sorted(kwargs))}")
        for name, value in kwargs.items():
            _log.warning(f"the argument {name}={value!r} is ignored")

    def set_cwd(self, path: str | None, **kwargs: Any) -> bool:
        """Resolve relative local paths from this folder, or from the current one if None."""
        self._check_kwargs(kwargs)
        if path is not None and not (os.path.isabs(path) and os.path.isdir(path)):
            raise ValueError(f"the folder must be an absolute path of a folder, got {path!r}")
        self._cwd = path
        return True

    def set_strict_kwargs_checking(self, enable: bool) -> None:
        """Choose whether unknown arguments are rejected, or only logged."""
        self._strict = enable


class PathManagerFactory:
    """Path managers by name."""

    pm_list: ClassVar[dict[str, PathManagerBase]] = {}

    @staticmethod
    def get(key: str = "global_path_manager") -> PathManagerBase:
        """Return the manager of this name, a new one the first time."""
        return PathManagerFactory.pm_list.setdefault(key, PathManagerBase())

    @staticmethod
    def remove(key: str) -> None:
        """Forget a manager."""
        PathManagerFactory.pm_list.pop(key, None)


g_pathmgr = PathManagerFactory.get()
PathManager = PathManagerBase()
