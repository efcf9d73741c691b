"""Optimizers that Towhee brought along, under its defaults."""

from importlib import import_module
from typing import Any

import torch


class AdamW(torch.optim.AdamW):
    """torch's AdamW with the defaults of Towhee."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
    ) -> None:
        if not correct_bias:
            raise ValueError("correct_bias is False, but torch's AdamW always corrects the bias")
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


def __getattr__(name: str) -> Any:
    if name != "Adafactor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module("transformers.optimization").Adafactor
    except (ImportError, RuntimeError) as error:  # RuntimeError: another torch's torchvision
        raise ImportError(
            f"Adafactor is that of the package 'transformers' ({error}): pip install transformers"
        ) from error
