"""Find out whether an optimizer updates each element by itself, by trying it on small matrices."""

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import (
    ASGD,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
)

from stoker.core import dist
from stoker.core.log import get_logger
from stoker.core.seed import preserve_rng
from stoker.core.tree import is_sharded, local_part, tensors
from stoker.parallel.gathered_step import Step, gather_in_step, step_in_passes

_log = get_logger()

_KNOWN = (SGD, Adam, AdamW, Adamax, NAdam, RAdam, Adagrad, Adadelta, RMSprop, Rprop, ASGD)
"""Optimizers of torch that update each element by itself."""

_STEPS = 32  # some optimizers begin to precondition after a number of steps
_OF_NO_MATTER = ("params", "param_names", "lr", "initial_lr", "weight_decay")
_LARGEST = 256  # of each dimension: some optimizers factor or quantize large tensors only

Kind: TypeAlias = tuple[int, int]
"""Parameters: the index of their group, or of the first with such options, and their dimensions."""


@dataclass(frozen=True)
class Coupling:
    """Which elements an optimizer updates together.

    Args:
        kinds: the parameters of which it updates elements together.
        across: whether the update of a parameter depends on others.
    """

    kinds: frozenset[Kind]
    across: bool


def find_coupling(optimizer: Optimizer) -> Coupling:
    """Return what an optimizer couples. All ranks must call it.

    Raises:
        ValueError: it cannot be tried.
    """
    if type(optimizer) in _KNOWN:
        return Coupling(frozenset(), across=False)
    with preserve_rng(), torch.enable_grad():
        try:
            found = _try(optimizer, torch.float64)
        except Exception:  # some have kernels for float32 only
            found = _try_float32(optimizer)
    everywhere = dist.all_gather_object(found)  # stages hold different parameters
    return Coupling(
        frozenset().union(*(one.kinds for one in everywhere)),
        any(one.across for one in everywhere),
    )


def _try_float32(optimizer: Optimizer) -> Coupling:
    try:
        return _try(optimizer, torch.float32)
    except Exception as error:
        name = type(optimizer).__name__
        raise ValueError(
            f"whether {name} updates each element by itself cannot be tried, because its step "
            f"fails on a small copy of its parameters ({type(error).__name__}: {error}): use "
            f"replicate instead of shard, tensor and pipeline, or another optimizer"
        ) from error


def _try(optimizer: Optimizer, dtype: torch.dtype) -> Coupling:
    samples = _samples(optimizer)
    coupled = {kind for kind, one in samples.items() if _couples(optimizer, kind, one, dtype)}
    return Coupling(frozenset(coupled), _couples_parameters(optimizer, samples, dtype))


def _samples(optimizer: Optimizer) -> dict[Kind, Tensor]:
    """Return one parameter of each number of dimensions for each group."""
    found: dict[Kind, Tensor] = {}
    for kind, parameter in _kinds(optimizer):
        if parameter.dim():
            found.setdefault(kind, parameter)
    return found


def _kinds(optimizer: Optimizer) -> Iterator[tuple[Kind, nn.Parameter]]:
    """Yield each parameter with its kind."""
    first: dict[str, int] = {}
    for index, group in enumerate(optimizer.param_groups):
        options = {key: value for key, value in group.items() if key not in _OF_NO_MATTER}
        same = first.setdefault(repr(sorted(options.items())), index)
        for parameter in group["params"]:
            yield (same, parameter.dim()), parameter


def _couples(optimizer: Optimizer, kind: Kind, sample: Tensor, dtype: torch.dtype) -> bool:
    """Return whether a matrix is updated in another way than its parts, each by itself."""
    start = _random(_small_shape(sample), 0, sample, dtype)
    for dim in {0, sample.dim() - 1}:
        cuts = [start.size(dim) // 4, start.size(dim) - start.size(dim) // 4]

        def divide(tensor: Tensor, dim: int = dim, cuts: list[int] = cuts) -> list[Tensor]:
            return [part.contiguous() for part in torch.split(tensor, cuts, dim)]

        complete = _Trial(optimizer, [(kind, sample, start)])
        parts = [_Trial(optimizer, [(kind, sample, part)]) for part in divide(start)]
        for number in range(1, _STEPS + 1):
            gradient = _random(start.shape, number, sample, dtype)
            complete.step([gradient])
            for part, share in zip(parts, divide(gradient), strict=True):
                part.step([share])
            joined = torch.cat([part.parameters[0] for part in parts], dim)
            if complete.has_other_shapes or _differ(complete.parameters[0], joined, start):
                return True
    return False


def _couples_parameters(
    optimizer: Optimizer, samples: Mapping[Kind, Tensor], dtype: torch.dtype
) -> bool:
    """Return whether parameters are updated in another way together than one by one."""
    starts = [
        (kind, sample, _random(_small_shape(sample), seed, sample, dtype))
        for kind, sample in samples.items()
        for seed in range(2)
    ]
    together, alone = _Trial(optimizer, starts), _Trial(optimizer, starts)
    for number in range(1, _STEPS + 1):
        gradients = [
            _random(start.shape, 1000 * number + index, start, dtype)
            for index, (_, _, start) in enumerate(starts)
        ]
        together.step(gradients)
        alone.step(gradients, one_by_one=True)
        pairs = zip(together.parameters, alone.parameters, starts, strict=True)
        if any(_differ(one, other, start) for one, other, (_, _, start) in pairs):
            return True
    return False


class _Trial:
    """A copy of an optimizer, with small parameters and without state."""

    def __init__(self, optimizer: Optimizer, starts: Sequence[tuple[Kind, Tensor, Tensor]]) -> None:
        self.parameters = [nn.Parameter(start.clone()) for _, _, start in starts]
        chosen: dict[int, list[nn.Parameter]] = defaultdict(list)
        for parameter, ((index, _), _, _) in zip(self.parameters, starts, strict=True):
            chosen[index].append(parameter)
        self._optimizer = _copy(optimizer, chosen)
        for parameter, (_, sample, _) in zip(self.parameters, starts, strict=True):
            if saved := optimizer.state.get(sample):
                self._optimizer.state[parameter] = {
                    key: _shrink(value, sample, parameter) for key, value in saved.items()
                }

    @property
    def has_other_shapes(self) -> bool:
        """Whether its state has tensors that are not of the shape of the parameter."""
        (parameter,) = self.parameters
        state = self._optimizer.state.get(parameter, {})
        return any(
            one.numel() > 1 and one.shape != parameter.shape
            for value in state.values()
            for one in tensors(value)
        )

    def step(self, gradients: list[Tensor], *, one_by_one: bool = False) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        step: Step = self._optimizer.step
        if one_by_one:
            step_in_passes(self._optimizer, step, [{id(one)} for one in self.parameters])
        else:
            step()


def _copy(optimizer: Optimizer, chosen: Mapping[int, list[nn.Parameter]]) -> Optimizer:
    """Return an optimizer with the same options and these parameters, by the index of a group."""
    made = object.__new__(type(optimizer))
    unused = nn.Parameter(torch.zeros(1))
    memo: dict[int, Any] = {id(p): unused for g in optimizer.param_groups for p in g["params"]}
    memo |= {id(optimizer): made, id(optimizer.state): defaultdict(dict)}
    own = {
        name: OrderedDict() if name.startswith("_optimizer_") else value
        for name, value in vars(optimizer).items()
        if name != "step"  # learning-rate schedulers replace it
    }
    vars(made).update(copy.deepcopy(own, memo))
    for index, group in enumerate(made.param_groups):
        group["params"][:] = chosen.get(index, [])
        if isinstance(group.get("lr"), int | float):
            group["lr"] = 1e-2  # a warm-up may have set it to 0
    train: Callable[[], None] = getattr(made, "train", lambda: None)
    train()
    return made


def _shrink(value: Any, sample: Tensor, parameter: Tensor) -> Any:
    """Return the state that an optimizer has made for a parameter, for a small one."""
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    local = local_part(value).detach()
    if value.shape != sample.shape or not local.numel():
        return local.clone()
    return local.flatten()[0].to(parameter.dtype).expand(parameter.shape).clone()


def _small_shape(parameter: Tensor) -> tuple[int, ...]:
    limit = _LARGEST
    while True:
        shape = tuple(max(4, min(size, limit)) for size in parameter.shape)
        if torch.Size(shape).numel() <= _LARGEST**2 or limit <= 4:
            return shape
        limit //= 2


def _random(shape: Any, seed: int, like: Tensor, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(shape, generator=generator, dtype=torch.float64) / 10
    return numbers.to(like.device, dtype)


def _differ(one: Tensor, other: Tensor, start: Tensor) -> bool:
    """Return whether two updates differ by more than rounding."""
    moved = (one.detach() - start).abs().max()
    limit = 1e-6 if one.dtype == torch.float64 else 1e-3
    return not bool((one.detach() - other.detach()).abs().max() <= limit * moved)


def coupled_parameters(optimizer: Optimizer, coupling: Coupling) -> Iterator[nn.Parameter]:
    """Yield the parameters whose elements are updated together."""
    for kind, parameter in _kinds(optimizer):
        if coupling.across or kind in coupling.kinds:
            yield parameter


def adapt_optimizer(optimizer: Optimizer, *, has_stages: bool) -> None:
    """Let an optimizer update split parameters as it updates complete ones.

    Raises:
        ValueError: it cannot.
    """
    coupling = find_coupling(optimizer)
    name = type(optimizer).__name__
    if coupling.across and has_stages:
        raise ValueError(
            f"{name} computes the update of a parameter from all parameters, but each process "
            "holds only those of its pipeline stages: use another layout, or another optimizer"
        )
    if coupling.across and any(map(is_sharded, _held(optimizer))):
        _log.warning(
            f"{name} computes the update of a parameter from all parameters, so each process "
            "holds all of them, with their gradients and state, during an update"
        )
    parameters = list(coupled_parameters(optimizer, coupling))
    gather_in_step(optimizer, parameters, one_by_one=not coupling.across)


def _held(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
