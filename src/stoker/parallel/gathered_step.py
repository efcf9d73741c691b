"""Step an optimizer that does not update each element by itself, on unsharded parameters."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.core.tree import is_sharded, local_part
from stoker.parallel.optimizers import shard_like

Step: TypeAlias = Callable[..., Any]


def gather_in_step(
    optimizer: Optimizer, parameters: Iterable[nn.Parameter], *, one_by_one: bool
) -> None:
    """Let an optimizer see some of its parameters unsharded whenever it steps.

    Every process then computes the same update and keeps its shard of it, so that the numbers are
    those of one process.

    Args:
        optimizer: its ``step`` is replaced.
        parameters: the parameters to gather, with their gradients and state.
        one_by_one: gather a parameter when it is updated, which takes several calls of the
            original step. Otherwise gather all of them for a single call.
    """
    gathered = [id(parameter) for parameter in parameters if is_sharded(parameter)]
    if not gathered:
        return
    inner: Step = optimizer.step

    @torch.no_grad()
    def step(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        else:
            loss = None
        has_hooks = self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks
        if not one_by_one or has_hooks:  # a hook is called once
            with _gathered(self, gathered):
                inner()
            return loss
        held = [p for group in self.param_groups for p in group["params"]]
        others = {id(p) for p in held} - {*gathered}
        due = [{id(p)} for p in held if id(p) in gathered and p.grad is not None]
        step_in_passes(self, inner, [others, *due] if others or not due else due, gathered)
        return loss

    if hasattr(inner, "_wrapped_by_lr_sched"):
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # or the scheduler warns
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]


def step_in_passes(
    optimizer: Optimizer,
    step: Step,
    passes: Sequence[Collection[int]],
    gathered: Sequence[int] = (),
) -> None:
    """Step once for some of the parameters at a time, as if it were a single step.

    Each pass starts with the counters and other numbers that the optimizer had before, so that a
    step counts once.

    Args:
        optimizer: the optimizer.
        step: makes a step.
        passes: for each pass, the ``id`` of the parameters that are updated.
        gathered: the ``id`` of those that are gathered for it.
    """
    groups = optimizer.param_groups
    complete = [list(group["params"]) for group in groups]
    before = [_numbers(group) for group in groups]
    own_before = _numbers(vars(optimizer))
    after: dict[int, dict[str, Any]] = {}
    try:
        for chosen in passes:
            vars(optimizer).update(own_before)
            for index, group in enumerate(groups):
                for key in _numbers(group).keys() - before[index].keys():
                    del group[key]
                group.update(before[index])
                group["params"][:] = [p for p in complete[index] if id(p) in chosen]
            with _gathered(optimizer, gathered):
                step()
            for index, group in enumerate(groups):
                if group["params"] or index not in after:
                    after[index] = _numbers(group)
    finally:
        for index, group in enumerate(groups):
            group["params"][:] = complete[index]
            group.update(after.get(index, {}))


@contextmanager
def _gathered(optimizer: Optimizer, chosen: Collection[int]) -> Iterator[None]:
    """Within this context, the optimizer holds unsharded copies of some of its parameters."""
    pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
    places: list[tuple[list[Any], int]] = []
    for group in optimizer.param_groups:
        for index, parameter in enumerate(group["params"]):
            if id(parameter) not in chosen or parameter.grad is None:
                continue
            full = nn.Parameter(_full(parameter.detach()), requires_grad=parameter.requires_grad)
            full.grad = _full(parameter.grad)
            if parameter in optimizer.state:
                state = optimizer.state.pop(parameter)
                optimizer.state[full] = {key: _full(value) for key, value in state.items()}
            group["params"][index] = full
            pairs.append((parameter, full))
            places.append((group["params"], index))
    try:
        yield
    finally:
        for (parameter, full), (params, index) in zip(pairs, places, strict=True):
            params[index] = parameter
            local_part(parameter.detach()).copy_(local_part(shard_like(full.detach(), parameter)))
            if full in optimizer.state:
                state = optimizer.state.pop(full)
                optimizer.state[parameter] = {
                    key: _shard(value, parameter) for key, value in state.items()
                }


def _full(value: Any) -> Any:
    return value.full_tensor() if is_sharded(value) else value


def _shard(value: Any, like: nn.Parameter) -> Any:
    """Return a tensor of the parameter's shape sharded like it; anything else is unchanged."""
    fits = isinstance(value, Tensor) and value.shape == like.shape
    return shard_like(value, like) if fits else value


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    kinds = (int, float, bool, str, type(None))
    return {key: value for key, value in values.items() if type(value) in kinds}
