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
    **dict.fromkeys(("amp", "amp.amp_type"), "context"),
    **dict.fromkeys(("builder", "builder.builder"), "registry"),
    "builder.pipeline": "pipelinable",
    **dict.fromkeys(("pipeline", "pipeline.pipelinable", "pipeline.utils"), "pipelinable"),
    **{f"communication{more}": "communication" for more in ("", ".p2p", ".utils")},
    "context": "context ranks",
    **dict.fromkeys(("context.config", "context.parallel_context", "core"), "context"),
    "context.parallel_mode": "ranks",
    "engine": "engine schedule context",
    "engine.amp": "context",
    "engine.gradient_handler": "engine",
    "engine.schedule": "schedule",
    "initialize": "initialize launching",
    **dict.fromkeys(("logging", "logging.logger"), "logging"),
    "nn": "nn lr_scheduler",
    **{f"nn.{part}": "nn" for part in ("layer", "loss", "metric", "optimizer")},
    "nn.lr_scheduler": "lr_scheduler",
    "registry": "registry",
    "trainer": "trainer",
    "trainer.hooks": "hooks log_hooks checkpoint_hooks",
    **{f"trainer.hooks.{part}": "hooks" for part in ("_base_hook", "_metric_hook")},
    "trainer.hooks._lr_scheduler_hook": "hooks",
    "trainer.hooks._checkpoint_hook": "checkpoint_hooks",
    "trainer.hooks._log_hook": "log_hooks",
    "trainer.metric": "metric",
    "utils": "utils",
    **{f"utils.{part}": "utils" for part in ("checkpointing", "common", "cuda", "timer")},
    **{f"utils.{part}": "utils" for part in ("activation_checkpoint", "data_sampler", "memory")},
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
