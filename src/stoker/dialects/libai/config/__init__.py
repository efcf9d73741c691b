"""Lazy configs, which can be edited, overridden and saved before anything is built."""

from stoker.dialects.libai.config.arguments import default_argument_parser
from stoker.dialects.libai.config.config import configurable, get_config, try_get_key
from stoker.dialects.libai.config.lazy import LazyCall, LazyConfig, instantiate

__all__ = [
    "LazyCall",
    "LazyConfig",
    "configurable",
    "default_argument_parser",
    "get_config",
    "instantiate",
    "try_get_key",
]
