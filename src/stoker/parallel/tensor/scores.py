"""Loss parallelism: scores that stay split over the vocabulary until a cross entropy is computed.

Torch's `loss_parallel` computes a cross entropy from parts of the scores, but forward and backward
pass must run within its context, and the scores are DTensors, which other code cannot mix with
plain tensors. Here they are tensors that any code can use: a function that is not known to work on
a part of the vocabulary gets the complete scores, as without loss parallelism.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional


def _getters(*names: str) -> set[Any]:
    return {getattr(Tensor, name).__get__ for name in names}


_METADATA = {
    *_getters("shape", "ndim", "dtype", "device", "layout", "is_meta"),
    *(Tensor.dim, Tensor.size, Tensor.numel, Tensor.is_floating_point, Tensor.__len__),
}
"""What is answered without values."""

_OF_PART: set[Any] = {
    *_getters("requires_grad", "grad_fn"),
    *(Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.to),
    *(Tensor.contiguous, Tensor.detach, Tensor.register_hook, Tensor.tanh, torch.tanh),
}
"""What each process can compute for its part."""

_BY_NUMBER: set[Any] = {Tensor.mul, Tensor.div, torch.mul, torch.div}
"""The same, if the other operand is a number; operators call these."""

_SHAPES: set[Any] = {Tensor.view, Tensor.reshape, Tensor.flatten, torch.flatten, torch.reshape}
"""The same, if the last dimension remains."""


class SplitScores(Tensor):
    """Scores of which this process has a part of the last dimension, with the complete shape.

    A function that needs the other parts gathers them, so all processes must call it.
    """

    _part: Tensor
    _processes: DeviceMesh

    @staticmethod
    def of(part: Tensor, mesh: DeviceMesh, total: int) -> "SplitScores":
        """Return the scores of which this process has ``part``, of ``total`` in all."""
        made: Any = Tensor._make_wrapper_subclass(
            SplitScores,
            (*part.shape[:-1], total),
            dtype=part.dtype,
            device=part.device,
            requires_grad=part.requires_grad,
        )
        made._part, made._processes = part, mesh
        if part.requires_grad:  # gradients belong to the part, and would be lost here
            with torch._C.DisableTorchFunctionSubclass():
                made.register_hook(_refuse)
        return made  # type: ignore[no-any-return]

    @property
    def complete(self) -> Tensor:
        """The scores of all processes, which must then compute the same gradients of them."""
        return self._split().redistribute(placements=[Replicate()]).to_local()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if func in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **options)
        if args and isinstance(args[0], SplitScores):
            found = args[0]._compute(func, args[1:], options)
            if found is not NotImplemented:
                return found
        return func(*_completed(args), **_completed(options))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        _refuse()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"SplitScores(shape={tuple(self.shape)}, dtype={self.dtype})"

    def _compute(self, func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Return the result of a function of the scores if it does not need other parts."""
        part = self._part
        given = (*args, *options.values())
        if func in _OF_PART or (
            func in _BY_NUMBER and all(isinstance(value, int | float) for value in given)
        ):
            found = func(part, *args, **options)
            return self._like(found) if isinstance(found, Tensor) else found
        if func in _SHAPES:
            shape = func(torch.empty(self.shape, device="meta"), *args, **options).shape
            if len(shape) and shape[-1] == self.shape[-1]:
                return self._like(part.reshape(*shape[:-1], part.shape[-1]))
        if func is Tensor.__getitem__:
            index = _leading_index(args[0], part.dim())
            return NotImplemented if index is None else self._like(part[index])
        if func is functional.cross_entropy:
            return self._cross_entropy(*args, **options)
        return NotImplemented

    def _like(self, part: Tensor) -> "SplitScores":
        return SplitScores.of(part, self._processes, self.shape[-1])

    def _split(self) -> DTensor:
        like = torch.empty(self.shape, device="meta")
        return DTensor.from_local(
            self._part,
            self._processes,
            [Shard(like.dim() - 1)],
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )

    def _cross_entropy(self, target: Tensor, **options: Any) -> Any:
        is_index = not target.is_floating_point() and target.dim() == self.dim() - 1 == 1
        if not is_index or options.get("label_smoothing"):
            return NotImplemented
        counted = target[target != options.get("ignore_index", -100)]
        are_known = ((counted >= 0) & (counted < self.shape[-1])).all()
        torch._assert_async(are_known, f"a label is not one of {self.shape[-1]} classes")
        return _CrossEntropy.apply(  # type: ignore[no-untyped-call]
            self._part, self._split, target, options
        )


class _CrossEntropy(torch.autograd.Function):
    """A cross entropy of split scores, with its gradient, so that torch's context ends here."""

    @staticmethod
    def forward(
        ctx: Any,
        part: Tensor,
        split: Callable[[], DTensor],
        target: Tensor,
        options: Mapping[str, Any],
    ) -> Tensor:
        scores = split().detach().requires_grad_()
        with torch.enable_grad(), loss_parallel():
            loss: Any = functional.cross_entropy(scores, target, **options)
            gradient: Any = torch.autograd.grad(loss.sum(), scores)[0]
        ctx.save_for_backward(gradient.to_local())
        found: Tensor = loss.to_local().detach()
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad.unsqueeze(-1) if grad.dim() else gradient * grad, None, None, None


def _refuse(*_: Any) -> None:
    raise ValueError(
        "a function that torch cannot look into computes with scores that loss_parallel has split: "
        "leave loss_parallel out"
    )


def _leading_index(index: Any, dims: int) -> tuple[Any, ...] | None:
    """Return an index of all dimensions but the last; None if that is indexed too."""
    given = list(index) if isinstance(index, tuple) else [index]
    if not all(isinstance(one, int | slice) or one is Ellipsis for one in given):
        return None
    if Ellipsis not in given:
        given.append(Ellipsis)
    place = given.index(Ellipsis)
    given[place : place + 1] = [slice(None)] * (dims - len(given) + 1)
    is_leading = len(given) == dims and given[-1] == slice(None)
    return tuple(given[:-1]) if is_leading else None


def _completed(tree: Any) -> Any:
    """Return arguments with complete scores in place of split ones."""
    if isinstance(tree, SplitScores):
        return tree.complete
    if isinstance(tree, Mapping):
        return {key: _completed(value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_completed(value) for value in tree)
    return tree
