"""Read built-in configs and single keys, and build classes from a config."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from stoker.config.lazy import Section
from stoker.core.errors import did_you_mean
from stoker.dialects.libai.config.lazy import LazyConfig

_SHIPPED = Path(__file__).parent.parent / "configs"


def get_config(config_path: str) -> Any:
    """Return a built-in config, such as "common/train.py" or "common/optim.py"."""
    if not (_SHIPPED / config_path).is_file():
        there = [str(path.relative_to(_SHIPPED)) for path in sorted(_SHIPPED.rglob("*.py"))]
        near = did_you_mean(config_path, there)
        raise ValueError(f"there is no config {config_path!r}{near} (configs: {', '.join(there)})")
    return LazyConfig.load(_SHIPPED / config_path)


def try_get_key(cfg: Any, *keys: str, default: Any = None) -> Any:
    """Return the value of the first dotted key that the config has, or the default."""
    for key in keys:
        value = cfg
        for part in key.split("."):
            value = value.get(part, _NOTHING) if isinstance(value, dict) else _NOTHING
        if value is not _NOTHING:
            return value
    return default


def configurable(init: Callable[..., None]) -> Callable[..., None]:
    """Build a class with ``from_config(cls, cfg) -> dict`` from a config."""

    @wraps(init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        cfg = args[0] if args else kwargs.get("cfg")
        if not isinstance(cfg, Section):
            init(self, *args, **kwargs)
            return
        others = {name: value for name, value in kwargs.items() if name != "cfg"}
        init(self, **{**type(self).from_config(cfg, *args[1:]), **others})

    return made


_NOTHING = object()
