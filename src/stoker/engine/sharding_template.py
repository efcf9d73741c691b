"""How the tensors of a saved run are sharded among the processes of this one."""

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor

from stoker.core.tree import is_sharded
from stoker.engine.engine import Engine, bare

Pattern: TypeAlias = Callable[[str, tuple[int, ...]], Tensor | None]


def pattern_of(engine: Engine) -> Pattern:
    """For the name and shape of a saved tensor, one of this run that is sharded as it should be.

    A tensor belongs to a parameter if its name ends in that of the parameter, or is that of a
    state of an optimizer, and if it has the parameter's shape: weights, averages of them, moments.
    None means that it comes whole.
    """
    named: dict[str, Any] = {
        name: parameter
        for name, parameter in bare(engine.model).named_parameters()
        if is_sharded(parameter)
    }
    for key, numbers in engine.numbers().items():
        for number, parameter in numbers.items():
            if is_sharded(parameter):
                named[f"engine.optimizers.{key}.state.{number}"] = parameter

    def like(name: str, shape: tuple[int, ...]) -> Tensor | None:
        parts = name.split(".")
        for begin in range(len(parts)):
            for end in (len(parts), len(parts) - 1):  # the last part may name a moment
                found = named.get(".".join(parts[begin:end]))
                if found is not None and tuple(found.shape) == shape:
                    return found  # type: ignore[no-any-return]
        return None

    return like
