"""The trainer of LiBai: lazy configs, four hook points, iterations."""

from stoker.dialects.aliases import arrange

arrange(
    __name__,
    {
        "config.arguments": "config",
        "config.config": "config",
        "config.lazy": "config",
        "engine": "default trainer",
        "engine.default": "default",
        "engine.hooks": "hooks",
        "engine.trainer": "trainer",
        "utils": "",
        "utils.checkpoint": "checkpoint",
        "utils.distributed": "distributed",
        "utils.events": "events",
        "utils.logger": "logger",
    },
)
