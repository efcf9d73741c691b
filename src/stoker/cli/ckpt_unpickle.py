"""What torch.save wrote, read without running code unless its maker is trusted."""

import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from stoker.config.text import ConfigError


def unpickled(path: Path, *, trust: bool) -> Any:
    """The contents of a file of torch.save; only tensors and plain values unless trusted."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they warn of is refused in words
            return torch.load(path, map_location="cpu", weights_only=not trust)
    except Exception as error:  # of bytes that mean nothing, any can come
        raise ConfigError(_reason(path, error, trust)) from error


def _reason(path: Path, error: Exception, trust: bool) -> str:
    """Why a file was refused, in one sentence."""
    message = str(error)
    asks = re.search(r"GLOBAL ([\w.]+)", message)
    if not trust and "TorchScript" in message:
        what = "a TorchScript program"
    elif not trust and asks:
        what = f"a pickle that asks for '{asks[1]}'"
    elif not trust and isinstance(error, pickle.UnpicklingError):
        what = "a pickle of more than weights"
    else:
        said = " ".join(f"{type(error).__name__} {message}".split())
        return f"'{path}' is no file that torch can load: {said[:200]}"
    return (
        f"'{path}' is {what}, which can run any code when it is loaded: give --trust if you know "
        "who made it"
    )
