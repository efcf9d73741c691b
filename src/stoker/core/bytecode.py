"""What Python functions do, read from their bytecode; nothing is called.

    facts_of        the variables a function uses, the attributes it modifies, what it draws from
    code_hash       digits that change with what a function does, not with its comments or its file
    only_observes   whether functions of a hook change nothing of a training

Only code of the user counts. Functions of installed packages are known by their names, so that an
upgrade of a package does not make every function a different one.
"""

import builtins
import dis
import inspect
import random
import sys
import sysconfig
from collections.abc import Container, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
import xxhash
from numpy.random import mtrand

_NAMES = (
    "stoker torch numpy pandas pyarrow scipy sklearn PIL cv2 h5py datasets tokenizers transformers "
    "accelerate safetensors torchmetrics torchdata tqdm rich wandb mlflow tensorboard tensorboardX "
    "matplotlib pytest psutil fsspec requests aiohttp boto3 ray pyspark yaml omegaconf"
)
_LIBRARIES = frozenset(_NAMES.split())
"""Packages whose objects keep no state that a training depends on, or save it themselves."""

_TORCH_DRAWS = {
    *("bernoulli", "multinomial", "normal", "poisson", "rand", "rand_like", "randint"),
    *("randint_like", "randn", "randn_like", "randperm"),
}
_TENSOR_DRAWS = {
    *("bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_"),
    *("random_", "uniform_"),
}
_MUTATORS = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert"),
    *("move_to_end", "pop", "popitem", "popleft", "remove", "reverse", "rotate", "setdefault"),
    *("sort", "update"),
}
"""Methods that change a container."""

_LOADS_NAME = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FROM_DICT_OR_GLOBALS"}
_LOADS_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD"}

_READING = {"__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward"}
"""Where reading a dataset, a sampler or a transform begins."""


@lru_cache(maxsize=4000)
def is_library(module_name: str | None) -> bool:
    """Return whether a module belongs to Python or to a package whose state is not searched."""
    if module_name is None:
        return True
    package = module_name.partition(".")[0]
    if package in ("__main__", "__mp_main__"):
        return False
    return package in _LIBRARIES or package in sys.stdlib_module_names


@dataclass(frozen=True)
class Facts:
    """What one function does.

    Args:
        variables: the global variables it uses, as namespaces and names.
        called: the names of attributes it loads, among them those of methods it calls.
        counts: attributes and global variables that it sets from their own value.
        sets: attributes that it sets.
        fills: attributes whose container it modifies.
        draws: the global generators it draws from: "random", "numpy", "torch".
        draws_while_yielding: those it draws from in a loop that yields.
    """

    variables: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    counts: set[str] = field(default_factory=set)
    sets: set[str] = field(default_factory=set)
    fills: set[str] = field(default_factory=set)
    draws: set[str] = field(default_factory=set)
    draws_while_yielding: set[str] = field(default_factory=set)


@lru_cache(maxsize=2000)
def facts_of(function: FunctionType) -> Facts:
    """Return what a function does, including the functions defined inside it."""
    facts = Facts()
    for code in _codes(function.__code__):
        _read(code, function.__globals__, facts)
    return facts


def reading_functions(cls: type) -> dict[str, FunctionType]:
    """Return the methods of a class that run while it is used, by name.

    They are those reachable from where reading begins; for a class without any, from its public
    methods. What only ``__init__`` calls is left out.
    """
    methods = {
        name: function
        for base in reversed(cls.__mro__)
        if not is_library(base.__module__)
        for name, attribute in vars(base).items()
        if (function := as_function(attribute)) is not None
    }
    names = [name for name in methods if name in _READING]
    names = names or [name for name in methods if not name.startswith("_")]
    found: dict[str, FunctionType] = {}
    while names:
        name = names.pop()
        if name not in found:
            found[name] = methods[name]
            names += [called for called in facts_of(methods[name]).called if called in methods]
    return found


def as_function(attribute: Any) -> FunctionType | None:
    """Return the Python function behind a method, a property or a wrapper; None without one."""
    if isinstance(attribute, staticmethod | classmethod | MethodType):
        attribute = attribute.__func__
    elif isinstance(attribute, property):
        attribute = attribute.fget
    while not isinstance(attribute, FunctionType) and hasattr(type(attribute), "__wrapped__"):
        attribute = attribute.__wrapped__
    if not isinstance(attribute, FunctionType):
        attribute = getattr(attribute, "__dict__", {}).get("__wrapped__")
    return attribute if isinstance(attribute, FunctionType) else None


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _read(code: CodeType, namespace: dict[str, Any], facts: Facts) -> None:
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "PRECALL")]
    passes_generator = any("generator" in _names(constant) for constant in code.co_consts)
    yielding = _yielding_loops(instructions)
    line: list[Any] = []
    current: Any = None
    for one in instructions:
        if one.starts_line is not None and one.starts_line is not False:
            line = []
        current = _follow(one, current, namespace, facts)
        drawn = _draws(current, one.argval if one.opname in _LOADS_ATTRIBUTE else "")
        if drawn and not (drawn == "torch" and passes_generator):
            facts.draws.add(drawn)
            if any(first <= one.offset <= last for first, last in yielding):
                facts.draws_while_yielding.add(drawn)
        _note_writes(one, line, facts)
        line.append(one)


def _follow(one: Any, current: Any, namespace: dict[str, Any], facts: Facts) -> Any:
    """Return the variable, or the attribute of a module, that an instruction loads."""
    if one.opname in _LOADS_NAME and one.argval in namespace:
        facts.variables.append((namespace, one.argval))
        return namespace[one.argval]
    if one.opname in _LOADS_ATTRIBUTE:
        facts.called.add(one.argval)
        if isinstance(current, ModuleType) and one.argval in vars(current):
            facts.variables.append((vars(current), one.argval))
            return vars(current)[one.argval]
    return current if one.opname in ("PUSH_NULL", "EXTENDED_ARG") else None


def _names(constant: Any) -> tuple[Any, ...]:
    return constant if isinstance(constant, tuple) else ()


def _is_load(instruction: Any) -> bool:
    return instruction.opname in _LOADS_ATTRIBUTE and isinstance(instruction.argval, str)


def _note_writes(one: Any, line: list[Any], facts: Facts) -> None:
    """Note an attribute or variable that a line sets from its own value, or fills."""
    if one.opname in ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF"):
        facts.sets.add(one.argval)
        loads = {i.argval for i in line if i.opname in _LOADS_ATTRIBUTE | _LOADS_NAME}
        combines = any(i.opname.startswith(("BINARY", "INPLACE")) for i in line)
        if one.argval in loads and combines:
            facts.counts.add(one.argval)
    elif one.opname in _LOADS_ATTRIBUTE and one.argval in _MUTATORS and line:
        facts.fills.update(i.argval for i in line[-1:] if _is_load(i))
    elif one.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
        facts.fills.update(i.argval for i in line if _is_load(i))


def _yielding_loops(instructions: list[Any]) -> list[tuple[int, int]]:
    """Return the first and last offset of each loop that yields a value."""
    loops = [(i.argval, i.offset) for i in instructions if i.opname.startswith("JUMP_BACKWARD")]
    yields = [i.offset for i in instructions if i.opname == "YIELD_VALUE"]
    return [loop for loop in loops if any(loop[0] <= offset <= loop[1] for offset in yields)]


def _draws(function: Any, method: str) -> str:
    """Return the global generator that a function or a tensor's method draws from, or ""."""
    if method in _TENSOR_DRAWS:
        return "torch"
    if not isinstance(function, BuiltinFunctionType | MethodType):
        return ""
    owner = getattr(function, "__self__", None)
    if owner is random._inst:
        return "random" if function.__name__ not in ("getstate", "setstate", "seed") else ""
    if owner is mtrand._rand:
        return "numpy" if function.__name__ not in ("get_state", "set_state", "seed") else ""
    name = getattr(function, "__name__", "")
    return "torch" if name in _TORCH_DRAWS and getattr(torch, name, None) is function else ""


# Code of the user

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
    for one in _codes(code):
        names = (one.co_names, one.co_varnames, one.co_freevars, one.co_cellvars)
        counts = (one.co_argcount, one.co_kwonlyargcount, one.co_posonlyargcount)
        constants = [
            _constant(value)
            for index, value in enumerate(one.co_consts)
            if index or not isinstance(value, str)  # the first is the docstring
        ]
        described = (one.co_code, names, counts, one.co_exceptiontable, constants)
        checksum.update(repr(described).encode("utf-8", "surrogatepass"))
    return str(checksum.hexdigest())[:8]


def _constant(value: Any) -> str:
    if isinstance(value, frozenset):
        return f"frozenset{sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"({','.join(map(_constant, value))})"
    return f"{type(value).__name__} {value!r}" if not isinstance(value, CodeType) else "code"


def names_in(code: CodeType) -> frozenset[str]:
    """Return the global names and the attributes that code uses, including functions in it."""
    return frozenset(name for one in _codes(code) for name in one.co_names)


def constants_in(code: CodeType) -> frozenset[Any]:
    """Return the texts and numbers that code contains, including functions in it."""
    constants = [value for one in _codes(code) for value in one.co_consts]
    return frozenset(value for value in constants if isinstance(value, str | int))


_NEAR = 4


def changed_names(code: CodeType) -> set[str]:
    """Return the variables from outside that code assigns, or whose items it changes."""
    return _changed(code, _LOADS_NAME, ("STORE_GLOBAL", "STORE_DEREF"))


def changed_attributes(code: CodeType) -> set[str]:
    """Return the attributes whose items code changes."""
    return _changed(code, ("LOAD_ATTR",), ())


def _changed(code: CodeType, loads: Container[str], stores: Container[str]) -> set[str]:
    found: set[str] = set()
    for one in _codes(code):
        loaded: list[tuple[int, str]] = []
        for number, op in enumerate(dis.get_instructions(one)):
            if op.opname in stores:
                found.add(op.argval)
            elif op.opname in loads and op.argval not in _MUTATORS:
                loaded.append((number, op.argval))
            elif op.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") or op.argval in _MUTATORS:
                near = 2 if op.argval in _MUTATORS else _NEAR
                found |= {name for where, name in loaded[-2:] if number - where < near}
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
        *(
            "val_names",
            "steps_per_epoch",
            "total_steps",
            "final_step",
            "max_steps",
            "max_epochs",
            "updated",
        ),
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
    instructions = (op for one in _codes(code) for op in dis.get_instructions(one))
    return {op.argval for op in instructions if op.opname in changing}
