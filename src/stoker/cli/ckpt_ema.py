"""The averaged weights in a checkpoint."""

from collections.abc import Mapping
from typing import Any

from stoker.cli.ckpt_contents import Contents
from stoker.config.text import ConfigError


def averaged(contents: Contents, weights: Mapping[str, Any]) -> Any:
    """The weights with the average in the place of parameters; buffers stay as they are."""
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
    new = {id(weights[name]): value for name, value in average.items()}
    return {name: new.get(id(value), value) for name, value in weights.items()}  # tied ones, too
