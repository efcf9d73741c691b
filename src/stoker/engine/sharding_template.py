"""Find how the tensors of a saved run are sharded over the processes of this one."""

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor

from stoker.core.tree import is_sharded
from stoker.engine.engine import Engine, unwrap

ShardingTemplate: TypeAlias = Callable[[str, tuple[int, ...]], Tensor | None]


def sharding_template(engine: Engine) -> ShardingTemplate:
    """Return a function from the name and shape of a saved tensor to a tensor sharded like it.

    A saved tensor belongs to a parameter if it has the parameter's shape and its name ends in the
    parameter's name, or names the parameter's state in an optimizer. This covers weights, averages
    of weights, and moments. The function returns None for a tensor that is not sharded.
    """
    named: dict[str, Any] = {
        name: parameter
        for name, parameter in unwrap(engine.model).named_parameters()
        if is_sharded(parameter)
    }
    for key, parameters in engine.indexed_parameters().items():
        for index, parameter in parameters.items():
            if is_sharded(parameter):
                named[f"engine.optimizers.{key}.state.{index}"] = parameter

    def template(name: str, shape: tuple[int, ...]) -> Tensor | None:
        parts = name.split(".")
        for begin in range(len(parts)):
            for end in (len(parts), len(parts) - 1):  # the last part may name a moment
                found = named.get(".".join(parts[begin:end]))
                if found is not None and tuple(found.shape) == shape:
                    return found  # type: ignore[no-any-return]
        return None

    return template
