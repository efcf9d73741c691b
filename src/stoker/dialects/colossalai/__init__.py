"""The Engine and Trainer of Colossal-AI, with hooks as objects or as ``dict(type=…)``."""

from stoker.dialects.aliases import arrange
from stoker.dialects.colossalai.initialize import initialize
from stoker.dialects.colossalai.launching import (
    get_default_parser,
    launch,
    launch_from_openmpi,
    launch_from_slurm,
    launch_from_torch,
)

_MODULES = {
    "accelerator": "utils",
    "amp": "context",
    "amp.amp_type": "context",
    "builder": "registry",
    "builder.builder": "registry",
    "communication": "communication",
    "communication.p2p": "communication",
    "communication.utils": "communication",
    "context": "context ranks",
    "context.config": "context",
    "context.parallel_context": "context",
    "context.parallel_mode": "ranks",
    "core": "context",
    "engine": "engine schedule context",
    "engine.amp": "context",
    "engine.gradient_handler": "engine",
    "engine.schedule": "schedule",
    "initialize": "initialize launching",
    "logging": "logging",
    "logging.logger": "logging",
    "nn": "nn lr_scheduler",
    "nn.layer": "nn",
    "nn.loss": "nn",
    "nn.lr_scheduler": "lr_scheduler",
    "nn.metric": "nn",
    "nn.optimizer": "nn",
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
    "utils.checkpointing": "utils",
    "utils.common": "utils",
    "utils.cuda": "utils",
    "utils.data_sampler": "utils",
    "utils.timer": "utils",
}
_LATER = {f"legacy.{old}": old for old in _MODULES}

arrange(__name__, {**_MODULES, "legacy": "initialize launching context", **_LATER})

__all__ = [
    "get_default_parser",
    "initialize",
    "launch",
    "launch_from_openmpi",
    "launch_from_slurm",
    "launch_from_torch",
]
