"""Materialize a model that was made on the meta device, in full or one shard at a time."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from stoker.core.log import get_logger
from stoker.core.seed import preserve_rng
from stoker.core.tree import is_sharded, local_part
from stoker.parallel.optimizers import shard_like

Share: TypeAlias = Callable[[Tensor], None]
Keep: TypeAlias = Callable[[str], bool]

_log = get_logger()


def is_meta(model: nn.Module) -> bool:
    """Return whether a parameter or buffer is on the meta device, without memory."""
    return any(tensor.is_meta for tensor in chain(model.parameters(), model.buffers()))


def materialize(
    model: nn.Module,
    device: torch.device,
    share: Share = lambda tensor: None,
    keep: Keep = lambda name: True,
) -> None:
    """Allocate the parameters and buffers of a model, or its shards, and initialize them.

    Modules initialize themselves, in the order in which the model lists them: with
    ``reset_parameters``, and in a model of transformers also with ``_init_weights``. Of a sharded
    model, the parameters of one module at a time are unsharded for that.

    Args:
        model: sharded or not.
        device: where to allocate.
        share: copies a tensor from the process that draws the random numbers to all others.
        keep: whether this process keeps the tensor of a name. The others are initialized one module
            at a time, so that the same random numbers are drawn, and stay on the meta device.

    Values that were set in a constructor are lost. A parameter that was set more often there than
    its initialization sets it is reported in the log.

    Raises:
        ValueError: some parameters or buffers, or parts of them, would stay without values.
    """
    _check_attributes(model)
    changes: dict[str, int] = {}
    pending = _allocate(model, device, changes, keep)
    found: Counter[str] = Counter()
    by_transformers: set[str] = set()
    for path, module in _children_first("", model):
        reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
        if callable(reset):
            found += _Initialization(path, module, pending, share, device).run(reset)
        if hasattr(module, "_init_weights") and hasattr(module, "init_weights"):
            init_weights: Any = module._init_weights
            for name, one in _children_first(path, module):
                if name not in by_transformers:
                    by_transformers.add(name)
                    init = partial(init_weights, one)
                    found += _Initialization(name, one, pending, share, device).run(init)
    missing = sorted(set(pending.values()) - found.keys())
    missing = missing or _partly_set(model, set(pending.values()))
    if missing:
        raise ValueError(
            f"{len(missing)} parameters or buffers of {type(model).__name__} are on the meta "
            f"device and get no values from a reset_parameters() (first: {missing[0]}): add this "
            "method to their module, or make the model without torch.device('meta')"
        )
    lost = [name for name, count in changes.items() if count > found[name]]
    if lost:
        _log.warning(
            f"{len(lost)} parameters of {type(model).__name__} were set more often when it was "
            f"made than by reset_parameters() (first: {lost[0]}): values that only a constructor "
            "sets are lost on the meta device, so set them in reset_parameters()"
        )


def _check_attributes(model: nn.Module) -> None:
    """Reject tensors without values that are neither parameters nor buffers."""
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, Tensor) and value.is_meta:
                raise ValueError(
                    f"{f'{path}.{key}'.lstrip('.')} of {type(model).__name__} is a tensor on the "
                    "meta device, but not a buffer, so it would stay without values: register it "
                    "as a buffer, or make the model without torch.device('meta')"
                )


def _partly_set(model: nn.Module, names: set[str]) -> list[str]:
    """Return the names of tensors of which some values were not set."""
    held = chain(model.named_parameters(), model.named_buffers())
    return [
        name
        for name, tensor in held
        if name in names
        and tensor.is_floating_point()
        and not tensor.is_meta
        and local_part(tensor).isnan().any()
    ]


def _allocate(
    model: nn.Module, device: torch.device, changes: dict[str, int], keep: Keep
) -> dict[int, str]:
    """Give tensors on the meta device memory, if this process keeps them; return names by ``id``.

    Decimals are NaN until they are set. ``changes`` gets how often each parameter was set.
    """
    made: dict[int, Tensor] = {}
    names: dict[int, str] = {}
    kept = _kept(model, keep)
    for path, module in model.named_modules():
        for held in (module._parameters, module._buffers):
            for key, old in held.items():
                if old is None or not old.is_meta:
                    continue
                if id(old) not in made:
                    made[id(old)] = _allocated(old, device) if id(old) in kept else old
                    name = f"{path}.{key}".lstrip(".")
                    names[id(made[id(old)])] = name
                    if isinstance(old, nn.Parameter):
                        changes[name] = local_part(old)._version
                held[key] = made[id(old)]
    model._apply(lambda tensor: tensor)  # type: ignore[no-untyped-call]  # FSDP2 finds the new ones
    return names


def _kept(model: nn.Module, keep: Keep) -> set[int]:
    """Return the tensors that this process keeps under at least one name, by ``id``."""
    return {
        id(tensor)
        for path, module in model.named_modules(remove_duplicate=False)
        for held in (module._parameters, module._buffers)
        for key, tensor in held.items()
        if keep(f"{path}.{key}".lstrip("."))
    }


def _allocated(old: Tensor, device: torch.device) -> Tensor:
    """Return a tensor with memory in place of one without."""
    new = torch.empty_like(old, device=device)
    if new.is_floating_point():
        local_part(new.detach()).fill_(math.nan)
    return nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new


def _children_first(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules in the order in which their constructors end."""
    for name, child in module.named_children():
        yield from _children_first(f"{path}.{name}".lstrip("."), child)
    yield path, module


class _Initialization:
    """Lets a module set parameters and buffers, of its own or of modules inside of it.

    Args:
        path: the name of the module.
        module: the module.
        names: the names of the tensors without values, by ``id``. A tied one has its first name.
        share: copies a tensor from the process that draws the random numbers to all others.
        device: where to initialize what this process does not keep.
    """

    def __init__(
        self,
        path: str,
        module: nn.Module,
        names: dict[int, str],
        share: Share,
        device: torch.device,
    ) -> None:
        self._places: dict[int, list[tuple[dict[str, Any], str]]] = {}
        self._tensors: dict[int, Any] = {}
        self._here: set[int] = set()  # what has its first name here
        for name, one in module.named_modules(prefix=path, remove_duplicate=False):
            for held in (one._parameters, one._buffers):
                for key, old in held.items():
                    if old is not None and id(old) in names:
                        self._places.setdefault(id(old), []).append((held, key))
                        self._tensors[id(old)] = old
                        if names[id(old)] == f"{name}.{key}".lstrip("."):
                            self._here.add(id(old))
        self._names, self._share, self._device = names, share, device

    @torch.no_grad()
    def run(self, init: Callable[[], Any]) -> Counter[str]:
        """Call ``init``; return the names of what it has set, and how often."""
        touched = self._touched(init) if self._tensors else {}
        copies: dict[int, Any] = {}
        for key in touched:
            old = self._tensors[key]
            if is_sharded(old) or old.is_meta or key not in self._here:
                copies[key] = self._copy(old)  # a tied one keeps its first values
                self._put(key, copies[key])
        if touched:
            init()
        for key in touched:
            old, new = self._tensors[key], self._current(key)
            if key in copies:
                self._put(key, old)
            if key in self._here:
                self._share(new)
                if key in copies and not old.is_meta:
                    local_part(old.detach()).copy_(local_part(shard_like(new.detach(), old)))
        return Counter({self._names[key]: touched[key] for key in touched if key in self._here})

    def _copy(self, old: Any) -> Tensor:
        """Return a complete tensor to initialize; this process keeps a part of it, or nothing."""
        if is_sharded(old):
            full = old.full_tensor()
        else:
            full = _allocated(old.detach(), self._device) if old.is_meta else old.clone()
        return nn.Parameter(full, old.requires_grad) if isinstance(old, nn.Parameter) else full

    def _touched(self, init: Callable[[], Any]) -> dict[int, int]:
        """Return what ``init`` sets, and how often, found by a call with tensors without values."""
        given: dict[int, Any] = {}
        for key, old in self._tensors.items():
            empty = torch.empty(old.shape, dtype=old.dtype, device="meta")
            is_parameter = isinstance(old, nn.Parameter)
            given[key] = nn.Parameter(empty, old.requires_grad) if is_parameter else empty
            self._put(key, given[key])
        versions = {key: one._version for key, one in given.items()}
        try:
            with preserve_rng():
                init()
            return {
                key: max(one._version - versions[key], 1)
                for key, one in given.items()
                if self._current(key) is not one or one._version != versions[key]
            }
        finally:
            for key, old in self._tensors.items():
                self._put(key, old)

    def _put(self, key: int, tensor: Tensor) -> None:
        for held, name in self._places[key]:
            held[name] = tensor

    def _current(self, key: int) -> Any:
        held, name = self._places[key][0]
        return held[name]
