"""Small parts that scripts import from BigDL and Orca."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

__all__ = ["EveryEpoch", "chunks", "invalidInputError", "invalidOperationError"]


def invalidInputError(  # noqa: N802
    condition: bool,
    errMsg: str,  # noqa: N803
    fixMsg: str | None = None,  # noqa: N803
) -> None:
    """Raise a RuntimeError with these messages unless the condition holds."""
    if not condition:
        raise RuntimeError(errMsg if fixMsg is None else f"{errMsg} ({fixMsg})")


invalidOperationError = invalidInputError  # noqa: N816


def chunks(iterable: Iterable[Any], size: int = 10) -> Iterator[list[Any]]:
    """Yield the items in lists of ``size``; the last may be shorter."""
    items = iter(iterable)
    while chunk := list(islice(items, size)):
        yield chunk


class EveryEpoch:
    """A trigger of BigDL's own engine. With PyTorch, `ModelCheckpoint` says when to save."""
