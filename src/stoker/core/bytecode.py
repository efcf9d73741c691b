"""What Python functions do, read from their bytecode; nothing is called.

    facts_of        the variables a function uses, the attributes it modifies, what it draws from
    code_hash       digits that change with what a function does, not with its comments or its file
    only_observes   whether functions of a hook change nothing of a training

Only code of the user counts. Functions of installed packages are known by their names, so that an
upgrade of a package does not make every function a different one.
"""

import builtins
import dis
import os
import random
import sys
import sysconfig
from collections.abc import Container, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
import xxhash
from numpy.random import mtrand

_NAMES = (
    "stoker torch numpy pandas pyarrow scipy sklearn PIL cv2 h5py datasets tokenizers transformers "
    "accelerate safetensors torchmetrics torchdata tqdm rich wandb mlflow tensorboard tensorboardX "
    "huggingface_hub filelock httpx httpcore "
    "matplotlib psutil fsspec requests aiohttp boto3 ray pyspark yaml omegaconf "
    "pytest _pytest pluggy xdist hypothesis coverage IPython ipykernel"
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
_LOADS_LOCAL = {"LOAD_FAST", "LOAD_DEREF", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_CLOSURE"}
_STORES_LOCAL = {"STORE_FAST", "STORE_DEREF"}
_SKIPPED = {"PUSH_NULL", "EXTENDED_ARG"}
_ENDS_STATEMENT = ("STORE", "DELETE", "POP", "JUMP", "FOR_ITER", "RETURN", "RAISE", "RERAISE")

_READING = {"__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward"}
"""Where reading a dataset, a sampler or a transform begins."""

_LIFECYCLE = frozenset(
    [
        *("__init__", "__new__", "__post_init__", "__init_subclass__", "__class_getitem__"),
        *("__set_name__", "__repr__", "__str__", "__format__", "__dir__", "__sizeof__", "__hash__"),
        *("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__copy__", "__del__"),
        *("__deepcopy__", "__getnewargs__", "__getnewargs_ex__"),
    ]
)
"""What Python calls to create, copy and show an object, not while it is used."""


@lru_cache(maxsize=4000)
def is_library(module_name: object) -> bool:
    """Return whether a module belongs to Python or to a package whose state is not searched.

    ``__module__`` of a compiled class may be no text: Cython's types have a descriptor there.
    """
    if not isinstance(module_name, str):
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
        renews: attributes that it sets before it reads them.
        fills: attributes whose container it modifies.
        draws: the global generators it draws from: "random", "numpy", "torch", or "os" for numbers
            of the operating system, which no seed repeats.
        draws_while_yielding: those it draws from in a loop that yields.
        pending: modules that it imports itself and that are not imported yet.
    """

    variables: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    counts: set[str] = field(default_factory=set)
    sets: set[str] = field(default_factory=set)
    renews: set[str] = field(default_factory=set)
    fills: set[str] = field(default_factory=set)
    draws: set[str] = field(default_factory=set)
    draws_while_yielding: set[str] = field(default_factory=set)
    pending: set[str] = field(default_factory=set)


def facts_of(function: FunctionType) -> Facts:
    """Return what a function does, including the functions defined inside it."""
    facts = _facts_of(function)
    if facts.pending and any(name in sys.modules for name in facts.pending):
        return _facts_of.__wrapped__(function)
    return facts


@lru_cache(maxsize=2000)
def _facts_of(function: FunctionType) -> Facts:
    facts = Facts()
    enclosed = {n: v for n, v in closure_of(function) if isinstance(v, ModuleType)}
    for code in _codes(function.__code__):
        _read(code, function.__globals__, enclosed, facts)
    return facts


def reading_functions(cls: type) -> dict[str, FunctionType]:
    """Return the methods of a class that run while it is used, by name.

    They are those reachable from where reading begins; for a class without any, from its public
    methods; and operators such as ``__mul__`` of a class that is not of an installed package.
    What only ``__init__`` calls is left out.
    """
    methods = _methods(cls)
    names = [name for name in methods if name in _READING]
    names = names or [name for name in methods if not name.startswith("_")]
    operators = [name for name in methods if _is_operator(name) and _is_own(methods[name])]
    return _reachable([*names, *operators], methods)


def other_functions(cls: type) -> dict[str, FunctionType]:
    """Return the methods of a class that others may call besides reading it, by name."""
    methods, reading = _methods(cls), reading_functions(cls)
    public = [n for n, one in methods.items() if not n.startswith("_") and _is_own(one)]
    found = _reachable(public, methods)
    return {name: function for name, function in found.items() if name not in reading}


def _methods(cls: type) -> dict[str, FunctionType]:
    return {
        name: function
        for base in reversed(cls.__mro__)
        if not is_library(base.__module__)
        for name, attribute in vars(base).items()
        if (function := as_function(attribute)) is not None
    }


def _is_own(function: FunctionType) -> bool:
    return is_user_file(function.__code__.co_filename)


def _is_operator(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name not in _LIFECYCLE


def _reachable(names: list[str], methods: Mapping[str, FunctionType]) -> dict[str, FunctionType]:
    """Return the methods with some names, and those that they call."""
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


def _read(
    code: CodeType, namespace: dict[str, Any], enclosed: Mapping[str, ModuleType], facts: Facts
) -> None:
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "PRECALL")]
    passes_generator = any("generator" in _names(constant) for constant in code.co_consts)
    yielding = _yielding_loops(instructions)
    line: list[Any] = []
    current: Any = None
    package = namespace.get("__package__") or ""
    modules = {**enclosed, **_local_modules(instructions, package, facts)}
    for one in instructions:
        begins = one.starts_line is not None and one.starts_line is not False
        if begins and line and line[-1].opname.startswith(_ENDS_STATEMENT):
            line = []
        before, current = current, _follow(one, current, modules, namespace, facts)
        if isinstance(before, ModuleType) and one.opname not in _LOADS_ATTRIBUTE | _SKIPPED:
            _note_all_of(before, facts)
        drawn = _draws(current, one.argval if one.opname in _LOADS_ATTRIBUTE else "")
        if drawn and not (drawn == "torch" and passes_generator):
            facts.draws.add(drawn)
            if any(first <= one.offset <= last for first, last in yielding):
                facts.draws_while_yielding.add(drawn)
        _note_writes(one, line, facts)
        line.append(one)


def _follow(
    one: Any,
    current: Any,
    modules: Mapping[str, ModuleType],
    namespace: dict[str, Any],
    facts: Facts,
) -> Any:
    """Return the variable, or the attribute of a module, that an instruction loads."""
    if one.opname in _LOADS_LOCAL and one.argval in modules:
        return modules[one.argval]
    if one.opname in _LOADS_NAME and one.argval in namespace:
        facts.variables.append((namespace, one.argval))
        return namespace[one.argval]
    if one.opname in _LOADS_ATTRIBUTE:
        facts.called.add(one.argval)
        if isinstance(current, ModuleType) and one.argval in vars(current):
            facts.variables.append((vars(current), one.argval))
            return vars(current)[one.argval]
    return current if one.opname in _SKIPPED else None


def _local_modules(instructions: list[Any], package: str, facts: Facts) -> dict[str, ModuleType]:
    """Return the modules that a function imports itself, by the names of its variables."""
    found: dict[str, ModuleType] = {}
    module: ModuleType | None = None
    for before, one in pairwise(instructions):
        if one.opname == "IMPORT_NAME":
            base = before.argval if before.opname == "LOAD_CONST" else None
            name = f"{package}.{one.argval}".strip(".") if package else one.argval
            candidates = (one.argval, name)
            module = next((sys.modules[n] for n in candidates if n in sys.modules), None)
            if module is None:
                facts.pending.update(candidates)
            elif base is None:  # import a.b as c binds the last part, import a.b the first
                module = sys.modules.get(one.argval, module)
        elif one.opname == "IMPORT_FROM" and module is not None:
            if isinstance(value := vars(module).get(one.argval), ModuleType):
                found[one.argval] = value
            else:
                facts.variables.append((vars(module), one.argval))
        elif one.opname in _STORES_LOCAL and before.opname == "IMPORT_NAME" and module is not None:
            found[one.argval] = module
    return found


def _note_all_of(module: ModuleType, facts: Facts) -> None:
    """Note all variables of a user's module that a function passes on, to ``getattr`` say."""
    if is_user_file(getattr(module, "__file__", None) or "<frozen"):
        names = [n for n in vars(module) if not n.startswith("__")]
        facts.variables.extend((vars(module), name) for name in names)


def _names(constant: Any) -> tuple[Any, ...]:
    return constant if isinstance(constant, tuple) else ()


def _is_load(instruction: Any) -> bool:
    return instruction.opname in _LOADS_ATTRIBUTE and isinstance(instruction.argval, str)


def _note_writes(one: Any, line: list[Any], facts: Facts) -> None:
    """Note an attribute or variable that a line sets from its own value, or fills."""
    if one.opname in ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF"):
        if one.argval not in facts.called:
            facts.renews.add(one.argval)
        facts.sets.add(one.argval)
        loads = {i.argval for i in line if i.opname in _LOADS_ATTRIBUTE | _LOADS_NAME}
        if one.argval in loads and _combines(line):
            facts.counts.add(one.argval)
    elif one.opname in _LOADS_ATTRIBUTE and one.argval in _MUTATORS and line:
        facts.fills.update(i.argval for i in line[-1:] if _is_load(i))
    elif one.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
        facts.fills.update(i.argval for i in line if _is_load(i))
        facts.counts.update(_counted_items(line))


def _combines(line: list[Any]) -> bool:
    """Return whether a statement computes something from at least two values."""
    if any(i.opname.startswith(("BINARY", "INPLACE")) for i in line):
        return True
    variables = {i.argval for i in line if i.opname in _LOADS_LOCAL} - {"self", "cls"}
    return bool(variables) and any(i.opname.startswith("CALL") for i in line)


def _counted_items(line: list[Any]) -> Iterator[str]:
    """Yield containers of which a line sets an item from an item: ``n[k] = n.get(k, 0) + 1``."""
    operations = [i.argrepr for i in line if i.opname.startswith(("BINARY_OP", "INPLACE"))]
    loads = [i.argval for i in line if i.opname in _LOADS_ATTRIBUTE | _LOADS_NAME]
    in_place = any(text.endswith("=") for text in operations)
    yield from (n for n in set(loads) if in_place or (operations and loads.count(n) > 1))


def _yielding_loops(instructions: list[Any]) -> list[tuple[int, int]]:
    """Return the first and last offset of each loop that yields a value."""
    loops = [(i.argval, i.offset) for i in instructions if i.opname.startswith("JUMP_BACKWARD")]
    yields = [i.offset for i in instructions if i.opname == "YIELD_VALUE"]
    return [loop for loop in loops if any(loop[0] <= offset <= loop[1] for offset in yields)]


def _draws(function: Any, method: str) -> str:
    """Return the global generator that a function or a tensor's method draws from, or ""."""
    if method in _TENSOR_DRAWS:
        return "torch"
    if isinstance(function, FunctionType | BuiltinFunctionType) and _asks_system(function):
        return "os"
    if not isinstance(function, BuiltinFunctionType | MethodType):
        return ""
    owner = getattr(function, "__self__", None)
    if owner is random._inst:
        return "random" if function.__name__ not in ("getstate", "setstate", "seed") else ""
    if owner is mtrand._rand:
        return "numpy" if function.__name__ not in ("get_state", "set_state", "seed") else ""
    name = getattr(function, "__name__", "")
    return "torch" if name in _TORCH_DRAWS and getattr(torch, name, None) is function else ""


def _asks_system(function: Any) -> bool:
    """Return whether a function returns random numbers of the operating system."""
    if function is os.urandom or function.__module__ == "secrets":
        return True
    return bool(function.__module__ == "uuid" and function.__name__ in ("uuid1", "uuid4"))


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
    if str(kind.__module__).partition(".")[0] in _PACKAGES:
        return False
    return any(True for _ in own_functions(kind))


def own_functions(kind: type) -> Iterator[FunctionType]:
    """Yield the functions that a class itself defines, if the user wrote them."""
    for name, value in vars(kind).items():
        if name in _UNUSED:
            continue
        for found in _layers(value):
            if isinstance(found, FunctionType) and is_user_code(found.__code__, found.__module__):
                yield found


def _layers(value: Any) -> Iterator[Any]:
    """Yield the functions behind an attribute of a class: of decorators, then what they wrap."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, property):
        yield from (one for one in (value.fset, value.fdel) if one is not None)
        value = value.fget
    seen: set[int] = set()
    while callable(value) and id(value) not in seen:
        seen.add(id(value))
        yield value
        value = getattr(value, "__dict__", {}).get("__wrapped__")


def code_hash(code: CodeType) -> str:
    """Return 8 digits that identify what code does, including the functions within it.

    Comments, docstrings, annotations of variables, line breaks and the names of local variables
    do not count.
    """
    return str(
        xxhash.xxh3_64(repr(_described(code, {})).encode("utf-8", "surrogatepass")).hexdigest()
    )[:8]


_FLAGS = 0x04 | 0x08 | 0x20 | 0x80 | 0x200  # *args, **kwargs, generators and coroutines
_WITHOUT_EFFECT = (
    "NOP",
    "EXTENDED_ARG",
    "CACHE",
    "PRECALL",
    "RESUME",
    "MAKE_CELL",
    "COPY_FREE_VARS",
)


def _described(code: CodeType, cells: Mapping[str, str]) -> list[Any]:
    """Return what code does as a list, given labels for variables of the functions around it."""
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found = list(dis.get_instructions(code))
    kept = [one for one in found if one.opname not in _WITHOUT_EFFECT]
    kept = [one for at, one in enumerate(kept) if not _is_docstring(kept, at)]
    own = dict.fromkeys(one.argval for one in kept if one.argval in code.co_cellvars)
    labels = {**cells, **{name: f"{len(cells)} {at}" for at, name in enumerate(own)}}
    numbers = _numbers(found, kept)
    effects = [(one.opname, _operand(one, code, numbers, labels)) for one in kept]
    return [
        named if code.co_name != "<lambda>" else (),
        (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags & _FLAGS),
        [one for _, run in groupby(effects, key=itemgetter(0)) for one in _in_order(list(run))],
        _handlers(code, numbers),
        [_described(one, labels) for one in code.co_consts if isinstance(one, CodeType)],
    ]


def _in_order(run: list[Any]) -> list[Any]:
    """Return equal instructions as they are, but the variables of a closure sorted."""
    return sorted(run) if run[0][0] == "LOAD_CLOSURE" else run


def _numbers(found: list[Any], kept: list[Any]) -> dict[int, int]:
    """Return the numbers of instructions that are kept, or of the next one, by offset."""
    starts = {one.offset: number for number, one in enumerate(kept)}
    numbers, following = dict[int, int](), len(kept)
    for one in reversed(found):
        numbers[one.offset] = following = starts.get(one.offset, following)
    return numbers


def _handlers(code: CodeType, numbers: Mapping[int, int]) -> list[Any]:
    """Return where exceptions are handled."""
    entries = getattr(dis, "_parse_exception_table", lambda _: ())(code)
    return [
        (*(numbers.get(at, -1) for at in (one.start, one.end, one.target)), one.depth, one.lasti)
        for one in entries
    ]


def _is_docstring(kept: list[Any], at: int) -> bool:
    """Return whether an instruction stores the docstring of a class within a function."""
    one = kept[at + 1] if at + 1 < len(kept) and kept[at].opname == "LOAD_CONST" else kept[at]
    return bool(one.opname == "STORE_NAME" and one.argval == "__doc__")


def _operand(one: Any, code: CodeType, numbers: Mapping[int, int], cells: Mapping[str, str]) -> Any:
    """Return what an instruction works on, without the names of local variables."""
    if one.opname == "KW_NAMES":
        return _constant(code.co_consts[one.arg])
    if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
        return numbers.get(one.argval, -1)
    if one.opcode in dis.hasconst:
        return _constant(one.argval)
    if one.opcode in dis.hasfree:
        return cells.get(one.argval, f"name {one.argval}")
    if one.opcode in dis.hasname:
        return one.argval, one.arg & 1 if one.opname in ("LOAD_GLOBAL", "LOAD_ATTR") else 0
    return one.arg


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
        else:
            yield from _used_of_module(name, value, names, 4)
    enclosed = [pair for pair in closure_of(function) if isinstance(pair[1], ModuleType)]
    for name, module in (*enclosed, *_local_imports(function)):
        if isinstance(module, ModuleType):
            yield from _used_of_module(name, module, names, 4)
        else:
            yield name, module


def _used_of_module(
    name: str, module: ModuleType, names: Set[str], depth: int
) -> Iterator[tuple[str, Any]]:
    """Yield what code with some names uses of a user's module, or what replaces a library's."""
    is_own = is_user_file(getattr(module, "__file__", None) or "<frozen")
    for inner in sorted(names & vars(module).keys()):
        value = vars(module)[inner]
        if isinstance(value, ModuleType):
            if depth and value is not module:
                yield from _used_of_module(f"{name}.{inner}", value, names, depth - 1)
        elif is_own or _is_patch(value):
            yield f"{name}.{inner}", value


def _is_patch(value: Any) -> bool:
    """Return whether a function in a library's module is one of the user."""
    return isinstance(value, FunctionType) and is_user_code(value.__code__, value.__module__)


def _local_imports(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the modules that a function imports itself; the source of those not imported yet."""
    found = list(dis.get_instructions(function.__code__))
    for name in dict.fromkeys(one.argval for one in found if one.opname == "IMPORT_NAME"):
        full = f"{function.__globals__.get('__package__') or ''}.{name}".strip(".")
        module = sys.modules.get(name) or sys.modules.get(full)
        if module is not None:
            yield name, module
        else:
            folders = [os.path.dirname(function.__code__.co_filename), *sys.path]
            paths = (os.path.join(folder, *name.split(".")) for folder in folders)
            files = (path for base in paths for path in (f"{base}.py", f"{base}/__init__.py"))
            source = next((path for path in files if os.path.isfile(path)), None)
            if source is not None and is_user_file(source):
                yield f"{name} source", Path(source).read_bytes()


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
