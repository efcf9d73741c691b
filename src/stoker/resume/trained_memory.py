"""Where the tensors of a checkpoint are read to, so that no second copy of the state is made."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from stoker.checkpoint.format.state_tree import Json, tensor_nodes
from stoker.checkpoint.read.load import model_keys
from stoker.checkpoint.read.stored_tensors import Template
from stoker.core import dist
from stoker.core.tree import is_sharded
from stoker.engine import averaging
from stoker.engine.engine import Engine, unwrap
from stoker.parallel import tied_names

_OPTIMIZERS = "engine.optimizers."


def outline(key: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor without memory, to compare what is saved with what is here."""
    return torch.empty(shape, dtype=dtype, device="meta")


def sharding_template(engine: Engine) -> Template:
    """Return a function that makes memory for the shard of this process, None if there is none.

    A saved tensor belongs to a parameter if it has the parameter's shape and its name ends in the
    parameter's name, or names the parameter's state in an optimizer. This covers weights, averages
    of weights, and moments.
    """
    model = unwrap(engine.model)
    named: dict[str, Any] = {
        name: parameter
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if is_sharded(parameter)
    }
    for names in tied_names(model):  # in a pipeline some of them belong to other processes
        parameter = next((named[name] for name in names if name in named), None)
        named |= dict.fromkeys(names, parameter) if parameter is not None else {}
    for key, parameters in engine.indexed_parameters().items():
        for index, parameter in parameters.items():
            if is_sharded(parameter):
                named[f"{_OPTIMIZERS}{key}.state.{index}"] = parameter

    def template(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
        parts = name.split(".")
        for begin in range(len(parts)):
            for end in (len(parts), len(parts) - 1):  # the last part may name a moment
                found = named.get(".".join(parts[begin:end]))
                if found is not None and tuple(found.shape) == shape:
                    return torch.empty_like(found, dtype=dtype, requires_grad=False)
        return None

    return template


def trained_keys(values: Mapping[str, Json]) -> set[str]:
    """Return the keys of weights and moments, which are read once the state is known to fit.

    A tensor that other parts of the state refer to as well is not one of them: it gets memory of
    its own.
    """
    engine = dict(values["engine"])
    weights, moments = tensor_nodes(values["model"]), tensor_nodes(engine.pop("optimizers"))
    others = tensor_nodes([{**values, "model": None, "engine": engine}])
    arrays = {key for key, node in (weights | moments).items() if "$array" in node}
    found = weights.keys() ^ {key for key in moments if ".state." in key}
    return found - others.keys() - arrays


def trained_memory(engine: Engine, values: Mapping[str, Json]) -> Template:
    """Return where to read weights and moments: the memory in which training has them.

    What only other stages of a pipeline have is not read. Call it when the state is known to fit.
    """
    saved, sharded = model_keys(values), sharding_template(engine)
    here = engine.local_weights(saved)
    weights = _written_by_load(engine)
    targets: dict[str, Tensor] = {key: weights[n] for n, key in here.items() if n in weights}
    targets |= _moments(engine)
    elsewhere = {*saved.values()} - {*here.values()} | set(_remote_moments(engine, values))

    def memory(key: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
        if key in elsewhere:
            return outline(key, shape, dtype)
        found = targets.get(key)
        fits = found is not None and tuple(found.shape) == shape and found.dtype == dtype
        return found if fits else sharded(key, shape, dtype)

    return memory


def _written_by_load(engine: Engine) -> dict[str, Tensor]:
    """Return the parameters and buffers that `load_state_dict` only copies into, by name.

    Modules that load in their own way, or whose state a hook changes on the way, are left out.
    """
    model = unwrap(engine.model)
    if averaging.switching(engine.optimizers.values()) or not _is_torchs(model, "load_state_dict"):
        return {}
    found: dict[str, Tensor] = {}
    left_out: tuple[str, ...] = ()
    for prefix, module in model.named_modules(remove_duplicate=False):
        below = f"{prefix}." if prefix else ""
        left_out += () if _loads_plainly(module) else (below,)
        if not below.startswith(left_out):
            held = chain(module._parameters.items(), module._buffers.items())
            found |= {below + key: one for key, one in held if one is not None and not one.is_meta}
    return found


def _loads_plainly(module: nn.Module) -> bool:
    hooks = (getattr(one, "hook", one) for one in module._load_state_dict_pre_hooks.values())
    is_changed = not all(map(dist.is_of_torch, hooks))
    return not is_changed and _is_torchs(module, "_load_from_state_dict")


def _is_torchs(module: nn.Module, method: str) -> bool:
    own = getattr(type(module), method).__module__
    return method not in vars(module) and own.startswith("torch.nn.modules.")


def _moments(engine: Engine) -> dict[str, Tensor]:
    """Return the tensors that the optimizers have already, by their keys in a checkpoint."""
    return {
        f"{_OPTIMIZERS}{name}.state.{index}.{key}": value
        for name, parameters in engine.indexed_parameters().items()
        for index, parameter in parameters.items()
        for key, value in engine.optimizers[name].state.get(parameter, {}).items()
        if isinstance(value, Tensor) and value.is_contiguous()
    }


def _remote_moments(engine: Engine, values: Mapping[str, Json]) -> Iterator[str]:
    """Yield the keys of moments of parameters that only other stages of a pipeline have."""
    if engine.stages is None:
        return
    here = tuple(
        f"{_OPTIMIZERS}{name}.state.{index}."
        for name, parameters in engine.indexed_parameters().items()
        for index in parameters
    )
    for key in tensor_nodes(values["engine"]["optimizers"]):
        if ".state." in key and not key.startswith(here):
            yield key
