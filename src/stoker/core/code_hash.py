"""Hashes of Python code: of what a function does, not of its comments, lines or file.

Only code of the user is hashed. Functions of installed packages are known by their names, so that
an upgrade of a package does not make every function a different one.
"""

import builtins
import dis
import inspect
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import xxhash

_UNUSED = frozenset(
    ("__repr__", "__str__", "__del__", "extra_repr", "state_dict", "load_state_dict", "__reduce__")
)
"""Methods that do not affect training."""

_PACKAGES = frozenset(("stoker", "torch", "numpy", "builtins"))


@cache
def _standard_library() -> str:
    return str(Path(sysconfig.get_paths()["stdlib"]).resolve())


@cache
def is_user_file(file: str) -> bool:
    """Return whether a source file belongs to the user, not to Python or an installed package."""
    if "site-packages" in file or "dist-packages" in file or file.startswith("<frozen"):
        return False
    return not file.startswith(_standard_library())


def is_user_code(code: CodeType, module: str | None) -> bool:
    """Return whether code belongs to the user, by its file and the name of its module."""
    return (module or "").partition(".")[0] not in _PACKAGES and is_user_file(code.co_filename)


def is_user_class(kind: type) -> bool:
    """Return whether a class has a method that the user wrote."""
    if kind.__module__.partition(".")[0] in _PACKAGES:
        return False
    return any(True for _ in own_functions(kind))


def own_functions(kind: type) -> Iterator[FunctionType]:
    """Yield the functions that a class itself defines, if the user wrote them."""
    for name, value in vars(kind).items():
        if name in _UNUSED:
            continue
        wrapped = isinstance(value, staticmethod | classmethod)
        found = value.__func__ if wrapped else getattr(value, "fget", None) or value
        found = inspect.unwrap(found) if callable(found) else found
        if isinstance(found, FunctionType) and is_user_code(found.__code__, found.__module__):
            yield found


def code_hash(code: CodeType) -> str:
    """Return 8 digits that identify what code does, including the functions within it."""
    checksum = xxhash.xxh3_64()
    for piece in _pieces(code):
        checksum.update(piece.encode("utf-8", "surrogatepass"))
        checksum.update(b"\0")
    return str(checksum.hexdigest())[:8]


def _pieces(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
    yield repr((code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount))
    yield code.co_exceptiontable.hex()
    for index, value in enumerate(code.co_consts):
        if isinstance(value, CodeType):
            yield from _pieces(value)
        elif index or not isinstance(value, str):  # the first is the docstring
            yield _constant(value)


def _constant(value: Any) -> str:
    if isinstance(value, frozenset):
        return f"frozenset{sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"({','.join(map(_constant, value))})"
    return f"{type(value).__name__} {value!r}" if not isinstance(value, CodeType) else "code"


def names_in(code: CodeType) -> frozenset[str]:
    """Return the global names and the attributes that code uses, including functions in it."""
    found = set(code.co_names)
    for value in code.co_consts:
        if isinstance(value, CodeType):
            found |= names_in(value)
    return frozenset(found)


def constants_in(code: CodeType) -> frozenset[Any]:
    """Return the texts and numbers that code contains, including functions in it."""
    found: set[Any] = set()
    for value in code.co_consts:
        if isinstance(value, CodeType):
            found |= constants_in(value)
        elif isinstance(value, str | int):
            found.add(value)
    return frozenset(found)


_MUTATORS = frozenset(
    (
        *("append", "extend", "add", "update", "insert", "pop", "popitem", "clear", "setdefault"),
        *("remove", "discard", "appendleft", "popleft", "move_to_end", "sort", "reverse"),
    )
)
_LOADS = ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME")
_NEAR = 4


def changed_names(code: CodeType) -> set[str]:
    """Return the variables from outside that code assigns, or whose items it changes."""
    found: set[str] = set()
    loaded: list[tuple[int, str]] = []
    for number, op in enumerate(dis.get_instructions(code)):
        if op.opname in ("STORE_GLOBAL", "STORE_DEREF"):
            found.add(op.argval)
        elif op.opname in _LOADS:
            loaded.append((number, op.argval))
        elif op.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") or op.argval in _MUTATORS:
            near = 2 if op.argval in _MUTATORS else _NEAR
            found |= {name for where, name in loaded[-2:] if number - where < near}
    for value in code.co_consts:
        if isinstance(value, CodeType):
            found |= changed_names(value)
    return found


def used_globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals that a function uses, and what it uses of the user's own modules."""
    names = names_in(function.__code__)
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        if not isinstance(value, ModuleType):
            yield name, value
        elif is_user_file(getattr(value, "__file__", None) or "<frozen"):
            for inner in sorted(names & vars(value).keys()):
                if not isinstance(vars(value)[inner], ModuleType):
                    yield f"{name}.{inner}", vars(value)[inner]


def closure_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables of enclosing functions that a function uses."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue


_OBSERVING = frozenset(
    (
        *("step", "epoch", "current_epoch", "samples", "loss", "metrics", "dir", "val_name"),
        *("val_names", "steps_per_epoch", "total_steps", "max_steps", "max_epochs", "updated"),
        *("where", "error", "task", "batches", "sizes", "outputs", "targets", "shape"),
        *("os", "kill", "getpid", "_exit", "environ", "signal", "SIGKILL", "SIGTERM", "SIGINT"),
        *("SIGUSR1", "raise_signal", "sys", "exit", "stderr", "stdout", "time", "sleep"),
        *("perf_counter", "monotonic", "append", "extend", "add", "items", "keys", "values"),
        *("get", "copy", "detach", "clone", "item", "cpu", "tolist", "numpy", "setdefault"),
        *("write", "flush", "write_text", "touch", "exists", "is_file", "unlink", "Path"),
        *("json", "dumps", "dump", "open", "close", "format", "join"),
        *("send", "recv", "put", "put_nowait", "wait", "set", "is_set"),
    )
)
"""What code uses that only reads counters and results, prints, writes, or ends the process."""


def only_observes(functions: Iterable[FunctionType], own: Set[str] = frozenset()) -> bool:
    """Return whether functions of a hook provably change nothing of a training.

    They read counters and results, print, write files, collect values or end the process, and use
    nothing else. In doubt the answer is False.

    Args:
        functions: what the hook calls.
        own: the names of its own methods and plain attributes.
    """
    return all(_observes(function, own) for function in functions)


def _observes(function: FunctionType, own: Set[str]) -> bool:
    if _stored_names(function.__code__) - own:
        return False
    known = function.__globals__
    return all(
        name in own or name in _OBSERVING or _is_harmless(name, known)
        for name in names_in(function.__code__)
    )


def _is_harmless(name: str, known: Mapping[str, Any]) -> bool:
    """Return whether a global is a plain value, an exception or a builtin that changes nothing."""
    value = known.get(name, getattr(builtins, name, None))
    if isinstance(value, type):
        return issubclass(value, BaseException | int | float | str | list | dict | set | tuple)
    plain = isinstance(value, str | int | float | list | set | dict | Path)
    return plain or name in ("print", "len", "open", "repr", "sum", "min", "max", "range", "round")


def _stored_names(code: CodeType) -> set[str]:
    """Return the attributes and globals that code sets or deletes, including functions in it."""
    changing = ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL")
    found = {op.argval for op in dis.get_instructions(code) if op.opname in changing}
    for value in code.co_consts:
        if isinstance(value, CodeType):
            found |= _stored_names(value)
    return found
