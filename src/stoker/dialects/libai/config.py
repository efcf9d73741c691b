"""Lazy configs, which can be edited, overridden and saved before anything is built."""

import argparse
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

from stoker.config import Builder, Config, ConfigError, L, Lazy, load
from stoker.config.lazy import Section, rebuilt
from stoker.config.yaml_text import settled, write
from stoker.core.errors import did_you_mean
from stoker.storage import write_atomic

LazyCall = L


class LazyConfig:
    """Read, change and write configs."""

    @staticmethod
    def load(filename: str | Path, keys: str | tuple[str, ...] | None = None) -> Any:
        """Load a .py, .yaml or .yml file, or only the given ``keys`` of it."""
        tree = load(filename).tree
        if keys is None:
            return tree
        for key in (keys,) if isinstance(keys, str) else keys:
            if key not in tree:
                raise ConfigError(f"'{filename}' has no {key!r} (keys: {', '.join(tree)})")
        return tree[keys] if isinstance(keys, str) else tuple(tree[key] for key in keys)

    @staticmethod
    def load_rel(filename: str, keys: str | tuple[str, ...] | None = None) -> Any:
        """Load a file relative to the calling file."""
        caller = Path(sys._getframe(1).f_code.co_filename)
        return LazyConfig.load(caller.parent / filename, keys)

    @staticmethod
    def apply_overrides(cfg: Any, overrides: Iterable[str]) -> Any:
        """Apply overrides such as ``["train.log_period=5"]``; unknown keys are an error."""
        return Config(cfg).override(*overrides).tree

    @staticmethod
    def save(cfg: Any, filename: str | Path) -> None:
        """Write the config as YAML, which `load` reads back."""
        write_atomic(Path(filename), write(settled(cfg)))

    @staticmethod
    def to_py(cfg: Any, prefix: str = "cfg.") -> str:
        """Return the config as readable Python assignments."""
        return "".join(f"{prefix}{name} = {value!r}\n" for name, value in cfg.items())


class _Builder(Builder):
    """Handle ``_recursive_=False``, which passes inner nodes without building them."""

    def build(self, value: Any, path: str = "", **supplied: Any) -> Any:
        if not isinstance(value, Lazy) or "_recursive_" not in value:
            return super().build(value, path, **supplied)
        node = rebuilt(value, lambda item: item)
        if node.pop("_recursive_"):
            return super().build(node, path, **supplied)
        return self.callee(node)(*node.args, **node)


def instantiate(cfg: Any, **kwargs: Any) -> Any:
    """Build a config, inner nodes first; ``kwargs`` override arguments of the outermost node."""
    if kwargs and not isinstance(cfg, Lazy):
        raise TypeError(
            f"instantiate() got arguments for a {type(cfg).__name__}, expected a LazyCall"
        )
    if kwargs:
        cfg = rebuilt(cfg, lambda item: item)
        cfg.update(kwargs)
    return _Builder(Config({})).build(cfg)


def supplied(node: Any, path: str, **values: Any) -> Any:
    """Build a node, passing the values that it has arguments for."""
    return _Builder(Config({})).build(node, path, **values)


def as_config(cfg: Any) -> Section:
    """Return a copy of a config with plain dicts converted to nodes and sections."""
    tree = settled(cfg, strict=False)
    assert isinstance(tree, Section)
    return tree


_SHIPPED = Path(__file__).parent / "configs"


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


def default_argument_parser(epilog: str | None = None) -> argparse.ArgumentParser:
    """Return a parser with the flags that `default_setup` reads."""
    parser = argparse.ArgumentParser(epilog=epilog)
    parser.add_argument("--config-file", default="", metavar="FILE", help="a lazy config")
    parser.add_argument("--resume", action="store_true", help="resume from the last checkpoint")
    parser.add_argument("--eval-only", action="store_true", help="only evaluate")
    parser.add_argument("--fast-dev-run", action="store_true", help="20 iterations, to try it out")
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="changes: train.log_period=5 …")
    return parser
