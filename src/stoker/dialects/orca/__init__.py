"""The estimator of BigDL Orca: ``bigdl.orca.x.y`` is ``stoker.dialects.orca.x.y``."""

from stoker.dialects.aliases import arrange
from stoker.dialects.orca.common import OrcaContext, init_orca_context, stop_orca_context

arrange(
    __name__,
    {
        "learn": "",
        "learn.metrics": "metrics",
        "learn.pytorch": "estimator",
        "learn.pytorch.callbacks": "callbacks",
        "learn.pytorch.callbacks.base": "callbacks",
        "learn.pytorch.callbacks.maincallback": "callbacks",
        "learn.pytorch.callbacks.maxsteps": "callbacks",
        "learn.pytorch.callbacks.model_checkpoint": "model_checkpoint",
        "learn.pytorch.callbacks.tensorboard": "callbacks",
        "learn.pytorch.callbacks.tqdm": "callbacks",
        "learn.pytorch.callbacks.wandb": "callbacks",
        "learn.pytorch.estimator": "estimator",
        "learn.pytorch.torch_runner": "torch_runner",
    },
)

__all__ = ["OrcaContext", "init_orca_context", "stop_orca_context"]
