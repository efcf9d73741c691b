"""Tensors as bytes: their names in safetensors, and when two are the same."""

from typing import Any

import torch

from stoker.tree import is_sharded, local_part

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls each dtype it has."""

BY_NAME = {name: dtype for dtype, name in DTYPES.items()}


def identity(tensor: Any) -> object:
    """Equal for two tensors that are the same numbers in the same memory."""
    part = local_part(tensor)
    if part.numel() == 0:
        return object()
    where = (part.data_ptr(), part.device, part.dtype, part.shape, part.stride(), part.is_conj())
    return (*where, tensor.shape, tensor.placements) if is_sharded(tensor) else where
