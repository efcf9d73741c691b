"""What Python functions do, read from their bytecode; nothing is called.

Used to find state that affects a training: the variables and modules that a function refers to, the
attributes it modifies, and whether it draws from the global random number generators.
"""

import dis
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
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
    *("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "pop"),
    *("popitem", "popleft", "remove", "rotate", "setdefault", "sort", "update"),
}
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
