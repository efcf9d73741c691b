"""Recognize errors of allocators, and give back the memory that nothing uses."""

import gc

import torch

_TEXTS = ("can't allocate memory", "not enough memory", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory has run out, on the CPU or on a device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)


def free_memory() -> None:
    """Collect garbage, and give cached memory back to the device."""
    gc.collect()
    if torch.accelerator.is_available():  # untested: CI has no accelerator
        torch.accelerator.empty_cache()
