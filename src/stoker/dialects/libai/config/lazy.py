"""`LazyCall`, `LazyConfig` and `instantiate`, on Stoker's config nodes."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stoker.config import Builder, Config, ConfigError, L, Lazy, load
from stoker.config.lazy import Section, rebuilt
from stoker.config.yaml_text import settled, write
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
