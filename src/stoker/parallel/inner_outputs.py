"""Refuse outputs of single blocks, where each process has only a part of the sequence."""

from collections.abc import Mapping
from typing import Any

from torch import nn

_OPTIONS = ("output_hidden_states", "output_attentions")


def refuse_inner_outputs(model: nn.Module, layout: str) -> None:
    """Let a model raise an error if it is to return what its blocks compute.

    Args:
        model: one of transformers, or another.
        layout: what splits the sequence, for the error.

    Raises:
        ValueError: its config asks for such outputs.
    """

    def refuse(_: nn.Module, __: Any, options: Mapping[str, Any]) -> None:
        for name in _OPTIONS:
            if options.get(name):
                raise ValueError(
                    f"{type(model).__name__} cannot return {name}: with {layout} each process has "
                    f"only a part of the sequence there: leave {name} out"
                )

    config = getattr(model, "config", None)
    refuse(model, (), {name: getattr(config, name, False) for name in _OPTIONS})
    model.register_forward_pre_hook(refuse, with_kwargs=True)
