"""Activation checkpointing: compute parts of a model again in the backward pass to save memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from stoker.core.errors import did_you_mean
from stoker.engine.compile import repeated_blocks

Recompute: TypeAlias = Literal["full", "selective", "blocks"]

_CHOICES = ("full", "selective", "blocks")
_KEPT = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "convolution",
    "_scaled_mm",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
"""The expensive operations, whose results "selective" keeps."""


def checkpoint_activations(model: nn.Module, how: str | None) -> None:
    """Let parts of a model keep only their inputs, and compute the rest again for gradients.

    Names of parameters do not change, unlike with the wrapper modules of torch.

    Args:
        model: changed in place.
        how: "blocks" for the repeated blocks, "selective" to keep the results of matrix products
            and attention within them, "full" for all other parts, too; None for nothing.

    Raises:
        ValueError: another value, or the model has no blocks.
    """
    if how is None:
        return
    if how not in _CHOICES:
        raise ValueError(
            f"activation_checkpointing is {how!r}{did_you_mean(str(how), _CHOICES)}, expected "
            "'full', 'selective' or 'blocks'"
        )
    blocks = repeated_blocks(model)
    if not blocks and how != "full":
        raise ValueError(
            f"activation_checkpointing is {how!r}, but {type(model).__name__} has no list with two "
            "blocks of one class (torch's own modules do not count): use 'full'"
        )
    _turn_off_cache(model)
    contexts = _keep_products if how == "selective" else None
    for part in _parts(model, blocks) if how == "full" else blocks:
        norms = [one for one in part.modules() if isinstance(one, nn.modules.batchnorm._NormBase)]
        part.forward = partial(_call, part, part.forward, contexts, norms)


def _turn_off_cache(model: nn.Module) -> None:
    """Let a model of transformers return no keys and values, which would be added twice."""
    config = getattr(model, "config", None)
    if getattr(config, "use_cache", False) is True:
        config.use_cache = False  # type: ignore[union-attr]


def _parts(model: nn.Module, blocks: list[nn.Module]) -> Iterator[nn.Module]:
    """Yield the blocks, and the largest modules around them that contain none."""
    for child in model.children():
        if child in blocks:
            yield child
        elif any(module in blocks for module in child.modules()) or _has_no_forward(child):
            yield from _parts(child, blocks)
        else:
            yield child


def _has_no_forward(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList | nn.ModuleDict)


def _call(
    module: nn.Module,
    forward: Callable[..., Any],
    contexts: Callable[[], Any] | None,
    norms: Sequence[nn.Module],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call a part of a model, so that its activations are computed again when they are needed."""
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    options: dict[str, Any] = {} if contexts is None else {"context_fn": contexts}
    if torch.compiler.is_compiling():
        return checkpoint(forward, *args, use_reentrant=False, **options, **kwargs)
    if norms:
        options["context_fn"] = partial(_without_statistics, contexts, norms)
    before = [(one, one._version) for one in _buffers(module)]
    result = checkpoint(forward, *args, use_reentrant=False, **options, **kwargs)
    if any(one._version != version for one, version in before):
        raise ValueError(
            f"{type(module).__name__} changes a buffer in its forward pass, so that it cannot be "
            "computed again for activation checkpointing: leave activation_checkpointing out"
        )
    return result


def _buffers(module: nn.Module) -> Iterator[Tensor]:
    """Yield the buffers, except for the statistics of batch norms."""
    for one in module.modules():
        if not isinstance(one, nn.modules.batchnorm._NormBase):
            yield from one.buffers(recurse=False)


def _keep_products() -> Any:
    return create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    name = getattr(getattr(operation, "overloadpacket", operation), "__name__", "")
    kept = name in _KEPT
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _without_statistics(
    contexts: Callable[[], Any] | None, norms: Sequence[nn.Module]
) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return contexts for both passes, of which the second leaves batch norms as they are."""
    first, second = (nullcontext(), nullcontext()) if contexts is None else contexts()

    @contextmanager
    def again() -> Iterator[None]:
        originals = [dict(norm._buffers) for norm in norms]
        for norm in norms:
            for name, value in norm._buffers.items():
                norm._buffers[name] = None if value is None else value.clone()
        try:
            with second:
                yield
        finally:
            for norm, original in zip(norms, originals, strict=True):
                norm._buffers.update(original)

    return first, again()
