"""Configs: describe a run in a file, override values, and check it before it is built.

from stoker.config import L

model = L(Net)(width=64)
optimizer = L(torch.optim.AdamW)(lr=3e-4)
run = dict(epochs=10)
"""

from stoker.config.config import Builder, Config, build, load
from stoker.config.lazy import L, Lazy
from stoker.config.registry import (
    HOOKS,
    LOADERS,
    LOSSES,
    METRICS,
    MODELS,
    OPTIMIZERS,
    SCHEDULERS,
    STEPS,
    Registry,
    RegistryError,
)
from stoker.config.run_section import RunConfig
from stoker.core.calls import explain_calls
from stoker.core.errors import ConfigError

__all__ = [
    "HOOKS",
    "LOADERS",
    "LOSSES",
    "METRICS",
    "MODELS",
    "OPTIMIZERS",
    "SCHEDULERS",
    "STEPS",
    "Builder",
    "Config",
    "ConfigError",
    "L",
    "Lazy",
    "Registry",
    "RegistryError",
    "RunConfig",
    "build",
    "load",
]

explain_calls(globals(), __all__)
