"""Tied parameters: those that a model has under several names."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from stoker.core import dist
from stoker.core.tree import local_part
from stoker.parallel.pipeline.stages import RemoteModule, is_remote


def tied_names(model: nn.Module) -> list[list[str]]:
    """Return the names of each tied parameter that this process holds, in the model's order.

    In a pipeline they include the names in other processes.
    """
    names: dict[int, list[str]] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, RemoteModule):
            for name, local in module.tied.items():
                names.setdefault(id(model.get_parameter(local)), []).append(name)
        for key, parameter in module._parameters.items():
            if parameter is not None:
                names.setdefault(id(parameter), []).append(f"{prefix}.{key}".lstrip("."))
    return [group for group in names.values() if len(group) > 1]


def local_weights(
    model: nn.Module, weights: Mapping[str, Any], *, all_names: bool = True
) -> dict[str, Any]:
    """Return the weights that this process holds, under the names that they have here.

    A tied parameter is found under any of its names. If there are several, the first in the order
    of the model counts: it is the one that averages and the like are kept under.

    Args:
        model: the model of this process.
        weights: weights, averages or the like, by names of the complete model.
        all_names: whether to return a tied parameter under all of its names here; otherwise only
            under those in ``weights``, if there are any.
    """
    found = {name: weight for name, weight in weights.items() if not is_remote(model, name)}
    for names in tied_names(model):
        saved = [name for name in names if name in weights]
        local = [name for name in names if not is_remote(model, name)]
        given = local if all_names else [name for name in local if name in weights] or local
        found |= dict.fromkeys(given, weights[saved[0]]) if saved else {}
    return found


def find_shared_memory(model: nn.Module) -> list[tuple[str, str]]:
    """Return pairs of parameters and buffers that are different tensors in the same memory."""
    first: dict[tuple[Any, ...], str] = {}
    pairs = []
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if type(tensor) in (Tensor, nn.Parameter) and tensor.numel() and not tensor.is_meta:
            known = first.setdefault((tensor.device, tensor.data_ptr()), name)
            pairs += [(known, name)] if known != name else []
    return pairs


def check_ties(
    model: nn.Module, tied: list[list[str]], memory: list[tuple[str, str]], layout: str
) -> None:
    """Check on all ranks that what was tied before the model was split is tied still.

    Args:
        model: the split model.
        tied: `tied_names` of the complete model.
        memory: `find_shared_memory` of the complete model.
        layout: its name for the error.

    Raises:
        ValueError: the layout separates what was tied, so that it would train differently.
    """
    if not tied and not memory:
        return
    faults = [*_separated(model, tied, layout), *_in_other_memory(model, memory, layout)]
    found = [fault for faults in dist.all_gather_object(faults) for fault in faults]
    if found:
        raise ValueError(found[0])


def _separated(model: nn.Module, tied: list[list[str]], layout: str) -> Iterator[str]:
    for names in tied:
        local = {id(_tensor(model, name)) for name in names if not is_remote(model, name)}
        if len(local) > 1:
            yield (
                f"{' and '.join(names)} are one parameter, which layout {layout} would separate: "
                "choose another split of the stages, or another layout"
            )


def _in_other_memory(model: nn.Module, memory: list[tuple[str, str]], layout: str) -> Iterator[str]:
    for pair in memory:
        places = {
            0 if is_remote(model, name) else local_part(_tensor(model, name)).data_ptr()
            for name in pair
        }
        if len(places) > 1:
            yield (
                f"{pair[0]} and {pair[1]} are different tensors in the same memory, which layout "
                f"{layout} would separate: make them one parameter, or two independent tensors"
            )


def _tensor(model: nn.Module, name: str) -> Any:
    parent, _, key = name.rpartition(".")
    return getattr(model.get_submodule(parent), key)
