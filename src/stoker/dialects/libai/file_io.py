"""Paths and files by prefix: local files, and handlers that a script registers."""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, ClassVar

from stoker.core.errors import UnsupportedURLError

_log = logging.getLogger("libai.file_io")
_OPEN = ("buffering", "encoding", "errors", "newline", "closefd", "opener")


class LazyPath(os.PathLike[str]):
    """A path that is computed when it is needed, once."""

    def __init__(self, func: Callable[[], str]) -> None:
        self._func = func
        self._value: str | None = None

    def __fspath__(self) -> str:
        if self._value is None:
            self._value = self._func()
        return self._value

    def __getattr__(self, name: str) -> Any:
        if self._value is None:
            raise AttributeError(f"the path is not computed yet, so that it has no {name!r}")
        return getattr(self._value, name)

    def __getitem__(self, key: Any) -> str:
        if self._value is None:
            raise TypeError("the path is not computed yet: call os.fspath first")
        return self._value[key]

    def __str__(self) -> str:
        return super().__str__() if self._value is None else self._value


class PathHandler:
    """The base of handlers for paths with a prefix, such as "s3://".

    A subclass overrides `_get_supported_prefixes` and the operations that it has; each takes a path
    and further arguments.
    """

    _strict_kwargs_check = True

    def __init__(self, async_executor: Any = None) -> None:
        self._non_blocking_io_manager = None
        self._non_blocking_io_executor = async_executor
        self._cwd: str | None = None

    def _get_supported_prefixes(self) -> list[str]:
        raise NotImplementedError(f"{type(self).__name__} has no _get_supported_prefixes(self)")

    def _check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Reject unknown arguments, or log them if the check is turned off."""
        if kwargs and self._strict_kwargs_check:
            raise ValueError(f"there are no arguments {', '.join(sorted(kwargs))}")
        for name, value in kwargs.items():
            _log.warning(f"the argument {name}={value!r} is ignored")


class NativePathHandler(PathHandler):
    """Local files."""

    def _get_path_with_cwd(self, path: Any) -> str:
        return os.path.normpath(os.path.join(self._cwd or "", os.fspath(path)))

    def _local(self, path: Any, kwargs: dict[str, Any]) -> str:
        self._check_kwargs(kwargs)
        return self._get_path_with_cwd(path)

    def _open(self, path: Any, mode: str = "r", **kwargs: Any) -> IO[Any]:
        options = {name: kwargs.pop(name) for name in _OPEN if name in kwargs}
        return open(self._local(path, kwargs), mode, **options)

    def _opena(
        self,
        path: Any,
        mode: str = "r",
        callback_after_file_close: Callable[[], None] | None = None,
        **kwargs: Any,
    ) -> IO[Any]:
        if not set(mode) <= set("wab"):
            raise ValueError(f"opena writes: mode must be of 'w', 'a' and 'b', got {mode!r}")
        file = self._open(path, mode, **kwargs)
        if callback_after_file_close is not None:
            close = file.close

            def closed() -> None:
                already = file.closed
                close()
                if not already:
                    callback_after_file_close()

            file.close = closed  # type: ignore[method-assign]
        return file

    def _get_local_path(self, path: Any, force: bool = False, **kwargs: Any) -> str:
        return self._local(path, kwargs)

    def _copy(self, src_path: Any, dst_path: Any, overwrite: bool = False, **kwargs: Any) -> bool:
        target = self._local(dst_path, kwargs)
        if os.path.exists(target) and not overwrite:
            _log.error(f"'{target}' exists already: pass overwrite=True")
            return False
        shutil.copyfile(self._get_path_with_cwd(src_path), target)
        return True

    _copy_from_local = _copy

    def _mv(self, src_path: Any, dst_path: Any, **kwargs: Any) -> bool:
        target = self._local(dst_path, kwargs)
        if os.path.exists(target):
            _log.error(f"'{target}' exists already")
            return False
        shutil.move(self._get_path_with_cwd(src_path), target)
        return True

    def _exists(self, path: Any, **kwargs: Any) -> bool:
        return os.path.exists(self._local(path, kwargs))

    def _isfile(self, path: Any, **kwargs: Any) -> bool:
        return os.path.isfile(self._local(path, kwargs))

    def _isdir(self, path: Any, **kwargs: Any) -> bool:
        return os.path.isdir(self._local(path, kwargs))

    def _ls(self, path: Any, **kwargs: Any) -> list[str]:
        return os.listdir(self._local(path, kwargs))

    def _mkdirs(self, path: Any, **kwargs: Any) -> None:
        Path(self._local(path, kwargs)).mkdir(parents=True, exist_ok=True)

    def _rm(self, path: Any, **kwargs: Any) -> None:
        Path(self._local(path, kwargs)).unlink()

    def _symlink(self, src_path: Any, dst_path: Any, **kwargs: Any) -> bool:
        target = Path(self._local(dst_path, kwargs))
        if target.exists():
            _log.error(f"'{target}' exists already")
            return False
        target.symlink_to(self._get_path_with_cwd(src_path))
        return True

    def _set_cwd(self, path: str | None, **kwargs: Any) -> bool:
        self._check_kwargs(kwargs)
        if path is not None and not (os.path.isabs(path) and os.path.isdir(path)):
            raise ValueError(f"the folder must be an absolute path of a folder, got {path!r}")
        self._cwd = path
        return True


def _operation(name: str, paths: int = 1) -> Any:
    """Return a method that calls the handler of the path; two paths must have the same one."""

    def call(self: "PathManagerBase", *args: Any, **kwargs: Any) -> Any:
        handlers = [self._handler_of(path) for path in args[:paths]] or [self._native_path_handler]
        if any(handler is not handlers[0] for handler in handlers):
            raise ValueError(f"{name} needs paths of one kind, got {args[0]!r} and {args[1]!r}")
        if not hasattr(handlers[0], f"_{name}"):
            raise NotImplementedError(f"{type(handlers[0]).__name__} has no _{name}")
        return getattr(handlers[0], f"_{name}")(*args, **kwargs)

    call.__name__, call.__doc__ = name, f"Call ``_{name}`` of the handler of the path."
    return call


class PathManagerBase:
    """File operations for local paths, and for those of registered handlers."""

    def __init__(self) -> None:
        self._path_handlers: dict[str, PathHandler] = {}
        self._native_path_handler: PathHandler = NativePathHandler()
        self._async_handlers: set[PathHandler] = set()

    open = _operation("open")
    opena = _operation("opena")
    copy = _operation("copy", paths=2)
    mv = _operation("mv", paths=2)
    symlink = _operation("symlink", paths=2)
    get_local_path = _operation("get_local_path")
    exists = _operation("exists")
    isfile = _operation("isfile")
    isdir = _operation("isdir")
    ls = _operation("ls")
    mkdirs = _operation("mkdirs")
    rm = _operation("rm")
    set_cwd = _operation("set_cwd", paths=0)

    def copy_from_local(self, local_path: Any, dst_path: Any, **kwargs: Any) -> Any:
        """Copy a local file to a path of any handler."""
        handler: Any = self._handler_of(dst_path)
        return handler._copy_from_local(local_path, dst_path, **kwargs)

    def _handler_of(self, path: Any) -> PathHandler:
        text = os.fspath(path)
        for prefix in sorted(self._path_handlers, reverse=True):  # the longest first
            if text.startswith(prefix):
                return self._path_handlers[prefix]
        if "://" in text:
            raise UnsupportedURLError(
                f"'{text}' is not a local path: register a PathHandler for its prefix"
            )
        return self._native_path_handler

    def register_handler(self, handler: PathHandler, allow_override: bool = False) -> None:
        """Use a handler for the paths with its prefixes."""
        if not isinstance(handler, PathHandler):
            raise TypeError(f"{handler!r} is a {type(handler).__name__}, expected a PathHandler")
        if isinstance(handler, NativePathHandler):
            if not allow_override:
                raise ValueError("local paths have a handler already: pass allow_override=True")
            self._native_path_handler = handler
            return
        for prefix in handler._get_supported_prefixes():
            if prefix in self._path_handlers and not allow_override:
                raise KeyError(f"'{prefix}' has a handler already: pass allow_override=True")
            self._path_handlers[prefix] = handler

    def set_strict_kwargs_checking(self, enable: bool) -> None:
        """Choose whether unknown arguments are rejected, or only logged."""
        for handler in (self._native_path_handler, *self._path_handlers.values()):
            handler._strict_kwargs_check = enable

    def async_join(self, *paths: str, **kwargs: Any) -> bool:
        """Do nothing: `opena` has written everything when its file is closed."""
        return True

    async_close = async_join


class PathManagerFactory:
    """Path managers by name."""

    GLOBAL_PATH_MANAGER = "global_path_manager"
    pm_list: ClassVar[dict[str, PathManagerBase]] = {}

    @staticmethod
    def get(key: str = GLOBAL_PATH_MANAGER) -> PathManagerBase:
        """Return the manager of this name, a new one the first time."""
        return PathManagerFactory.pm_list.setdefault(key, PathManagerBase())

    @staticmethod
    def remove(key: str) -> None:
        """Forget a manager."""
        PathManagerFactory.pm_list.pop(key, None)


g_pathmgr = PathManagerFactory.get()
PathManager = PathManagerBase()
