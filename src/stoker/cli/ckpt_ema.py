"""The averaged weights in a checkpoint, by name.

`hooks.EMA` keeps a list in the order of ``model.parameters()``. A state dict has parameters in
that same order, but with buffers among them, and it does not say which are which. So names come
from the model of a config; without one, only where shapes and types leave no second way to read
the list.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from stoker.checkpoint import CheckpointError
from stoker.cli.ckpt_contents import Contents
from stoker.config.text import ConfigError


def averaged(contents: Contents, weights: Mapping[str, Any], model: nn.Module | None) -> Any:
    """The weights with the average in the place of parameters; buffers stay as they are."""
    average = _average(contents)
    names = _names_by_model(average, model) if model is not None else _names(average, weights)
    new = {id(weights[name]): value for name, value in zip(names, average, strict=True)}
    return {name: new.get(id(value), value) for name, value in weights.items()}  # tied ones, too


def _average(contents: Contents) -> list[Tensor]:
    held = {
        name: state["average"]
        for name, state in contents.part("hooks").items()
        if isinstance(state, dict) and list(state) == ["average"]
    }
    if len(held) != 1:
        found = f"of the hooks {', '.join(held)} do" if held else "none of its hooks does"
        raise ConfigError(
            f"--ema needs one hook that holds an average, but in '{contents.path}' {found}"
        )
    ((hook, node),) = held.items()
    average: Any = contents.load(node)
    if not average:
        raise ConfigError(
            f"hook '{hook}' holds no average in '{contents.path}': it had not begun, or had "
            "already put it into the model"
        )
    return list(average)


def _names_by_model(average: Sequence[Tensor], model: nn.Module) -> list[str]:
    parameters = dict(model.named_parameters())
    fits = len(average) == len(parameters) and all(
        _alike(one, parameter) for one, parameter in zip(average, parameters.values(), strict=True)
    )
    if not fits:
        raise CheckpointError(
            f"the average has {len(average)} tensors that are not those of the config's model, "
            f"which has {len(parameters)} parameters: is it the config of this run?"
        )
    return list(parameters)


def _names(average: Sequence[Tensor], weights: Mapping[str, Any]) -> list[str]:
    """The only names that fit, in their order; a tied weight counts once."""
    once = {id(value): name for name, value in reversed(list(weights.items()))}
    names = [name for name in weights if once[id(weights[name])] == name]
    ways = _ways(average, [weights[name] for name in names])
    if ways[0][0] != 1:
        which = "can belong to several of" if ways[0][0] else "do not fit"
        raise ConfigError(
            f"the {len(average)} averaged tensors {which} the {len(names)} weights of the "
            "checkpoint: give --config CFG, whose model knows the names of its parameters"
        )
    found, at = [], 0
    for number in range(len(average)):
        while not (_alike(average[number], weights[names[at]]) and ways[number + 1][at + 1]):
            at += 1
        found.append(names[at])
        at += 1
    return found


def _ways(average: Sequence[Tensor], weights: Sequence[Any]) -> list[list[int]]:
    """In how many ways averages from i on can stand, in order, among weights from j on; up to 2."""
    ways = [[0] * (len(weights) + 1) for _ in average] + [[1] * (len(weights) + 1)]
    for i in reversed(range(len(average))):
        for j in reversed(range(len(weights))):
            taken = ways[i + 1][j + 1] if _alike(average[i], weights[j]) else 0
            ways[i][j] = min(2, ways[i][j + 1] + taken)
    return ways


def _alike(one: Tensor, other: Any) -> bool:
    return isinstance(other, Tensor) and one.shape == other.shape and one.dtype == other.dtype
