"""The Engine and Trainer of Colossal-AI, with hooks as objects or as ``dict(type=…)``."""

from stoker.dialects.aliases import arrange
from stoker.dialects.colossalai.initialize import (
    get_default_parser,
    initialize,
    launch,
    launch_from_openmpi,
    launch_from_slurm,
    launch_from_torch,
)

_MODULES = {
    "amp": "context",
    "builder": "registry",
    "context": "context",
    "core": "context",
    "engine": "engine schedule",
    "engine.gradient_handler": "engine",
    "engine.schedule": "schedule",
    "initialize": "initialize",
    "logging": "logging",
    "nn": "",
    "nn.lr_scheduler": "lr_scheduler",
    "registry": "registry",
    "trainer": "trainer",
    "trainer.hooks": "hooks log_hooks checkpoint_hooks",
    "trainer.hooks._base_hook": "hooks",
    "trainer.hooks._checkpoint_hook": "checkpoint_hooks",
    "trainer.hooks._log_hook": "log_hooks",
    "trainer.hooks._lr_scheduler_hook": "hooks",
    "trainer.hooks._metric_hook": "hooks",
    "trainer.metric": "metric",
    "utils": "utils",
}
_LATER = {f"legacy.{old}": old for old in _MODULES}

arrange(__name__, {**_MODULES, "legacy": "initialize context", **_LATER})

__all__ = [
    "get_default_parser",
    "initialize",
    "launch",
    "launch_from_openmpi",
    "launch_from_slurm",
    "launch_from_torch",
]
