"""`LazyCall`, `LazyConfig` and `instantiate`: Stoker's nodes under their older names."""

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
    """Reads, changes and writes configs, all of them trees whose items are attributes."""

    @staticmethod
    def load(filename: str | Path, keys: str | tuple[str, ...] | None = None) -> Any:
        """The config in a .py, .yaml or .yml file, or the parts of it that ``keys`` name."""
        tree = load(filename).tree
        if keys is None:
            return tree
        for key in (keys,) if isinstance(keys, str) else keys:
            if key not in tree:
                raise ConfigError(f"'{filename}' has no {key!r} (there is {', '.join(tree)})")
        return tree[keys] if isinstance(keys, str) else tuple(tree[key] for key in keys)

    @staticmethod
    def load_rel(filename: str, keys: str | tuple[str, ...] | None = None) -> Any:
        """The same for a file whose place is told from that of the calling one."""
        caller = Path(sys._getframe(1).f_code.co_filename)
        return LazyConfig.load(caller.parent / filename, keys)

    @staticmethod
    def apply_overrides(cfg: Any, overrides: Iterable[str]) -> Any:
        """The config with ``["train.log_period=5"]`` done to it; unknown places are refused."""
        return Config(cfg).override(*overrides).tree

    @staticmethod
    def save(cfg: Any, filename: str | Path) -> None:
        """Write YAML that `load` reads to an equal tree."""
        write_atomic(Path(filename), write(settled(cfg)))

    @staticmethod
    def to_py(cfg: Any, prefix: str = "cfg.") -> str:
        """The config as lines of Python, for people."""
        return "".join(f"{prefix}{name} = {value!r}\n" for name, value in cfg.items())


class _Builder(Builder):
    """Minds ``_recursive_=False``: a node that is called with the nodes inside it as they are."""

    def build(self, value: Any, path: str = "", **supplied: Any) -> Any:
        if not isinstance(value, Lazy) or "_recursive_" not in value:
            return super().build(value, path, **supplied)
        node = rebuilt(value, lambda item: item)
        if node.pop("_recursive_"):
            return super().build(node, path, **supplied)
        return self.callee(node)(*node.args, **node)


def instantiate(cfg: Any, **kwargs: Any) -> Any:
    """What a config describes, made inside out; ``kwargs`` replace arguments of the outermost."""
    if kwargs and not isinstance(cfg, Lazy):
        raise TypeError(f"instantiate() got arguments for a {type(cfg).__name__}, no LazyCall node")
    if kwargs:
        cfg = rebuilt(cfg, lambda item: item)
        cfg.update(kwargs)
    return _Builder(Config({})).build(cfg)


def supplied(node: Any, path: str, **values: Any) -> Any:
    """What a node describes; it takes those of the values that it has an argument for."""
    return _Builder(Config({})).build(node, path, **values)


def as_config(cfg: Any) -> Section:
    """A copy of a config as nodes and sections, whatever plain dicts are in it."""
    tree = settled(cfg, strict=False)
    assert isinstance(tree, Section)
    return tree
