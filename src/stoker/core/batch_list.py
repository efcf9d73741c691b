"""Long lists of tensors or of batches in memory, handled without a Python loop over them."""

import itertools
import operator
import weakref
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

_MIN_LENGTH = 64
_MAX_LENGTH = 100_000
_SCALARS = frozenset({type(None), bool, int, float, str})
_NESTED = ({tuple}, {list}, {dict})


def leaves_of(value: Any) -> list[Any] | None:
    """Return the tensors and scalars in a long list of batches; None for anything else.

    A batch is a tensor, or a tuple, list or dict of tensors and scalars.
    """
    if type(value) not in (list, tuple) or not _MIN_LENGTH <= len(value) <= _MAX_LENGTH:
        return None
    kinds, leaves = set(map(type, value)), value
    if kinds in _NESTED:
        parts = map(dict.values, value) if kinds == {dict} else value
        leaves = itertools.chain.from_iterable(parts)
    leaves = list(leaves)
    kinds = set(map(type, leaves))
    if Tensor not in kinds or not kinds <= {Tensor, *_SCALARS}:
        return None
    found = tensors_of(leaves)
    is_strided = set(map(operator.attrgetter("layout"), found)) == {torch.strided}
    return leaves if is_strided and not any(map(operator.attrgetter("is_meta"), found)) else None


def tensors_of(leaves: list[Any]) -> list[Tensor]:
    """Return the tensors among leaves."""
    return [leaf for leaf in leaves if type(leaf) is Tensor]


def joined(found: list[Tensor]) -> list[Tensor]:
    """Return tensors joined along their first dimension, as far as types and shapes fit."""
    groups: dict[torch.dtype, list[Tensor]] = defaultdict(list)
    for tensor in found:
        groups[tensor.dtype].append(tensor)
    with torch.no_grad():
        return list(itertools.chain.from_iterable(map(_cat, groups.values())))


def _cat(found: list[Tensor]) -> list[Tensor]:
    try:
        return [torch.cat(found)]
    except RuntimeError:  # their other dimensions differ, or they have none
        return found


class BatchListState:
    """What changes with a long list of batches: identities, versions, scalars.

    A tensor counts the operations that have changed it. The state holds no tensor alive.

    Args:
        value: the list.
        leaves: what `leaves_of` returned for it.
    """

    def __init__(self, value: Any, leaves: list[Any]) -> None:
        found = tensors_of(leaves)
        self._tensors = list(map(weakref.ref, found))
        self._plain = (
            type(value),
            len(value),
            _versions(found),
            repr([leaf for leaf in leaves if type(leaf) is not Tensor]),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BatchListState) or self._plain != other._plain:
            return False
        return len(self._tensors) == len(other._tensors) and all(
            map(operator.is_, self._tensors, other._tensors)
        )

    __hash__ = None  # type: ignore[assignment]


def _versions(found: list[Tensor]) -> list[int]:
    if any(map(Tensor.is_inference, found)):  # which count nothing
        return [0 if one.is_inference() else one._version for one in found]
    return list(map(operator.attrgetter("_version"), found))
