"""Convert a state to named tensors and a JSON tree, and back, exactly.

What JSON has is stored as it is. Everything else is an object whose first key starts with ``$``:

    {"$tensor": "model.weight"}         a tensor, by its key
    {"$tuple": [1, 2]}                  and $set, $frozenset, $deque, $size
    {"$dict": [[1, "a"], [null, 2]]}    a dict whose keys are not strings; and $counter, $ordered
    {"$float": "7ff8000000000000"}      the bits of a non-finite float
    {"$int": "0x…"}                     an int of more than 64 bits; and $bytes, $dtype, $device
    {"$complex": [0.0, 1.0]}            its real and its imaginary part
    {"$array": …}, {"$scalar": …}       numpy: type and raw bytes

A tensor that occurs twice is loaded as one tensor again.
"""

import base64
import math
import re
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from stoker.checkpoint.format.names import MODEL
from stoker.checkpoint.format.tensor_file import DTYPES, memory_identity
from stoker.checkpoint.format.validation import check_dimensions
from stoker.core.tree import is_sharded

Json: TypeAlias = Any
"""What ``json.dumps`` accepts."""

_DEEPEST = 100
"""How deep a state may be nested, so that it can be read again."""

_EXPECTED = "expected tensors, numpy arrays, numbers, strings, bytes and containers of them"


def flatten(tree: Any) -> tuple[dict[str, Tensor], Json]:
    """Return the tensors of a state by key, not copied, and everything else as a JSON tree."""
    flattener = _Flattener()
    values = flattener.encode(tree, ())
    return flattener.tensors, values


def unflatten(tensors: Mapping[str, Tensor], values: Json) -> Any:
    """Return the state that was passed to `flatten`."""
    return _Unflattener(tensors).decode(values)


def tensor_nodes(values: Json) -> dict[str, dict[str, Json]]:
    """Return, by its key, the node of each tensor that a JSON tree refers to.

    The node of a tensor that holds a numpy array is that of the array.
    """
    found: dict[str, dict[str, Json]] = {}
    waiting = [values]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            array = node.get("$array")
            if isinstance(array, dict) and "$tensor" in array:
                found[array["$tensor"]] = node
                continue
            if "$tensor" in node:
                found[node["$tensor"]] = node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return found


def unsupported(path: tuple[str, ...], what: str, expected: str = _EXPECTED) -> TypeError:
    """Return the error for a value that cannot be saved, with the keys that lead to it."""
    return TypeError(f"{' → '.join(path) or 'the state'} is {what}, {expected}")


class _Flattener:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[object, str] = {}
        self._encoders: dict[type, Callable[[Any, tuple[str, ...]], Json]] = {
            type(None): lambda value, _: value,
            bool: lambda value, _: value,
            str: lambda value, _: value,
            int: _encode_int,
            float: _encode_float,
            complex: lambda value, path: {"$complex": self._items((value.real, value.imag), path)},
            bytes: lambda value, _: {"$bytes": base64.b64encode(value).decode()},
            list: self._items,
            tuple: lambda value, path: {"$tuple": self._items(value, path)},
            set: lambda value, path: {"$set": self._members(value, path)},
            frozenset: lambda value, path: {"$frozenset": self._members(value, path)},
            deque: lambda value, path: {"$deque": self._items(value, path), "max": value.maxlen},
            torch.Size: lambda value, _: {"$size": list(value)},
            torch.dtype: lambda value, _: {"$dtype": str(value).removeprefix("torch.")},
            torch.device: lambda value, _: {"$device": str(value)},
            dict: self._mapping,
            defaultdict: self._mapping,
            Counter: lambda value, path: {"$counter": self._pairs(value, path)},
            OrderedDict: self._ordered,
            np.ndarray: self._array,
        }

    def encode(self, value: Any, path: tuple[str, ...]) -> Json:
        if len(path) > _DEEPEST:
            raise unsupported(path[:3], f"nested more than {_DEEPEST} levels deep")
        encoder = self._encoders.get(type(value))
        if encoder is not None:
            return encoder(value, path)
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if isinstance(value, np.generic):
            return _encode_scalar(value, path)
        raise unsupported(path, _a(type(value).__name__))

    def _items(self, items: Iterable[Any], path: tuple[str, ...]) -> list[Json]:
        return [self.encode(item, (*path, str(i))) for i, item in enumerate(items)]

    def _members(self, items: Iterable[Any], path: tuple[str, ...]) -> list[Json]:
        return sorted(self._items(items, path), key=repr)  # equal sets give equal bytes

    def _mapping(self, mapping: Mapping[Any, Any], path: tuple[str, ...]) -> Json:
        if all(type(key) is str and not key.startswith("$") for key in mapping):
            return {key: self.encode(value, (*path, key)) for key, value in mapping.items()}
        return {"$dict": self._pairs(mapping, path)}

    def _ordered(self, mapping: Mapping[Any, Any], path: tuple[str, ...]) -> Json:
        notes = getattr(mapping, "_metadata", None)  # module versions, for load_state_dict
        return {
            "$ordered": self._pairs(mapping, path),
            "notes": None if notes is None else self.encode(notes, (*path, "_metadata")),
        }

    def _pairs(self, mapping: Mapping[Any, Any], path: tuple[str, ...]) -> list[Json]:
        pairs = []
        for key, value in mapping.items():
            if type(key) not in (str, int, float, bool, type(None)):
                expected = "expected a string, a number or None"
                raise unsupported(
                    (*path, repr(key)), f"stored under {_a(type(key).__name__)} as key", expected
                )
            pairs.append([self.encode(key, path), self.encode(value, (*path, str(key)))])
        return pairs

    def _tensor(self, tensor: Tensor, path: tuple[str, ...]) -> Json:
        _check(tensor, path)
        tensor = tensor.detach()
        extra: dict[str, Json] = {}
        if tensor.is_complex() and tensor.dtype not in DTYPES:
            tensor, extra["complex"] = torch.view_as_real(tensor.resolve_conj()), True
        elif not is_sharded(tensor) and not tensor.is_contiguous() and _is_dense(tensor):
            extra["stride"] = list(tensor.stride())
        return {"$tensor": self._add(tensor, memory_identity(tensor), path)} | extra

    def _array(self, array: np.ndarray[Any, Any], path: tuple[str, ...]) -> Json:
        if array.dtype.kind not in "biufcSUmM":
            raise unsupported(
                path, f"a numpy array of {array.dtype}", "expected numbers or strings"
            )
        flat = np.ascontiguousarray(array).reshape(-1)
        flat = flat if flat.flags.writeable else flat.copy()
        raw = torch.from_numpy(flat.view(np.uint8) if array.nbytes else np.empty(0, np.uint8))
        name = self._add(raw, ("numpy", id(array)), path)
        return {"$array": {"$tensor": name}, "dtype": array.dtype.str, "shape": list(array.shape)}

    def _add(self, tensor: Tensor, identity: object, path: tuple[str, ...]) -> str:
        """Store a tensor unless the same one is stored already, and return its key.

        Tensors of the model keep an entry each, even if tied: their file is loaded by others.
        """
        known = self._names.get(identity)
        wanted = ".".join(path).encode("utf-8", "replace").decode() or "value"
        if known is None or wanted.startswith(MODEL):
            wanted = self._unused(wanted)
            self.tensors[wanted] = tensor
            self._names.setdefault(identity, wanted)
        return known or wanted

    def _unused(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self.tensors or name.removeprefix(MODEL) == "__metadata__":
            number += 1
            name = f"{wanted}~{number}"
        return name


class _Unflattener:
    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._made: dict[str, Any] = {}
        self._decoders: dict[str, Callable[[Any, dict[str, Json]], Any]] = {
            "$tensor": self._tensor,
            "$tuple": lambda items, _: tuple(self._items(items)),
            "$set": lambda items, _: set(self._items(items)),
            "$frozenset": lambda items, _: frozenset(self._items(items)),
            "$deque": lambda items, node: deque(self._items(items), node["max"]),
            "$size": lambda items, _: torch.Size(items),
            "$dict": lambda pairs, _: dict(self._pairs(pairs)),
            "$counter": lambda pairs, _: Counter(dict(self._pairs(pairs))),
            "$ordered": self._ordered,
            "$int": lambda text, _: int(text, 16),
            "$float": lambda text, _: struct.unpack(">d", bytes.fromhex(text))[0],
            "$complex": lambda parts, _: complex(*self._items(parts)),
            "$bytes": lambda text, _: base64.b64decode(text),
            "$dtype": lambda text, _: _DTYPES[text],
            "$device": lambda text, _: torch.device(text),
            "$array": self._array,
            "$scalar": lambda text, node: np.frombuffer(bytes.fromhex(text), _numpy_dtype(node))[0],
        }

    def decode(self, node: Json) -> Any:
        if isinstance(node, list):
            return self._items(node)
        if not isinstance(node, dict):
            return node
        tag = next(iter(node), "")
        if tag.startswith("$"):
            return self._decoders[tag](node[tag], node)
        return {key: self.decode(value) for key, value in node.items()}

    def _items(self, items: list[Json]) -> list[Any]:
        return [self.decode(item) for item in items]

    def _pairs(self, pairs: list[Json]) -> list[tuple[Any, Any]]:
        return [(self.decode(key), self.decode(value)) for key, value in pairs]

    def _ordered(self, pairs: list[Json], node: dict[str, Json]) -> Any:
        mapping: Any = OrderedDict(self._pairs(pairs))
        if node["notes"] is not None:
            mapping._metadata = self.decode(node["notes"])
        return mapping

    def _tensor(self, name: str, node: dict[str, Json]) -> Tensor:
        if name not in self._made:
            tensor = self._tensors[name]
            if "complex" in node:
                tensor = torch.view_as_complex(tensor)
            if "stride" in node and not tensor.is_meta and not is_sharded(tensor):
                permuted = new_permuted(tensor.shape, node["stride"], tensor.dtype)
                is_permuted = tensor.stride() == permuted.stride()
                tensor = tensor if is_permuted else permuted.copy_(tensor)
            self._made[name] = tensor
        made: Tensor = self._made[name]
        return made

    def _array(self, ref: Json, node: dict[str, Json]) -> np.ndarray[Any, Any]:
        name = ref["$tensor"]
        if name not in self._made:
            raw = self._tensors[name].numpy()
            self._made[name] = raw.view(_numpy_dtype(node)).reshape(node["shape"])
        made: np.ndarray[Any, Any] = self._made[name]
        return made


_DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}
_NUMPY_DTYPE = re.compile(r"[<>|=][biufcSUmM]\d{1,9}(\[\d{0,9}\w{1,9}\])?", re.ASCII)


def _numpy_dtype(node: dict[str, Json]) -> "np.dtype[Any]":
    if not _NUMPY_DTYPE.fullmatch(node["dtype"]):
        raise ValueError(f"'{node['dtype'][:60]}' is not a dtype of numbers or strings")
    return np.dtype(node["dtype"])


def new_permuted(shape: tuple[int, ...], stride: list[int], dtype: torch.dtype) -> Tensor:
    """Return a new tensor with these strides, which must be a permutation of contiguous ones."""
    expected = 1
    for step, size in sorted(zip(check_dimensions(stride, "a stride"), shape, strict=True)):
        if size != 1 and step != expected:
            raise ValueError(f"the strides {stride} of a tensor {list(shape)} are not dense")
        expected *= size
    return torch.empty_strided(shape, stride, dtype=dtype)


def _encode_int(value: int, _: tuple[str, ...]) -> Json:
    # JSON parsers, including Python's, limit the number of digits
    return value if -(2**63) <= value < 2**64 else {"$int": hex(value)}


def _encode_float(value: float, _: tuple[str, ...]) -> Json:
    return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}


def _encode_scalar(value: "np.generic[Any]", path: tuple[str, ...]) -> Json:
    if value.dtype.kind not in "biufcSUmM":
        raise unsupported(path, f"a numpy scalar of {value.dtype}", "expected a number or a string")
    return {"$scalar": value.tobytes().hex(), "dtype": value.dtype.str}


def _check(tensor: Tensor, path: tuple[str, ...]) -> None:
    """Reject a tensor that is not plain bytes."""
    if torch.nn.parameter.is_lazy(tensor):
        raise unsupported(
            path,
            "an uninitialized parameter",
            "expected one with a shape: run a forward pass first",
        )
    plain = type(tensor.detach()) is Tensor or is_sharded(tensor)
    if not plain or tensor.layout is not torch.strided or tensor.is_nested:
        kind = type(tensor).__name__ if not plain else f"tensor of layout {tensor.layout}"
        raise unsupported(path, _a(kind), "expected a plain dense tensor or a DTensor")
    if tensor.is_meta:
        raise unsupported(path, "a meta tensor", "expected one with data")
    if tensor.dtype not in DTYPES and not tensor.is_complex():
        raise unsupported(
            path, f"a tensor of {tensor.dtype}", "expected a dtype that safetensors supports"
        )


def _is_dense(tensor: Tensor) -> bool:
    """Return whether the strides are a permutation of contiguous ones, as for channels-last."""
    strides = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], dim))
    return tensor.permute(order).is_contiguous()


def _a(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
