"""The estimator of BigDL Orca: ``bigdl.orca.x.y`` is ``stoker.dialects.orca.x.y``."""

from stoker.dialects.aliases import arrange
from stoker.dialects.orca.common import OrcaContext, init_orca_context, stop_orca_context

arrange(
    __name__,
    {
        "data": "shards",
        "data.file": "helpers",
        "data.image": "",
        "data.image.utils": "helpers",
        "data.pandas": "shards",
        "data.pandas.preprocessing": "shards",
        "data.shard": "shards",
        "dllib": "",
        "dllib.nncontext": "common",
        "dllib.utils": "",
        "dllib.utils.file_utils": "helpers",
        "dllib.utils.log4Error": "helpers",
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
        "learn.pytorch.pytorch_metrics": "pytorch_metrics",
        "learn.pytorch.torch_runner": "torch_runner",
        "learn.pytorch.utils": "stats",
        "learn.trigger": "helpers",
    },
)

__all__ = ["OrcaContext", "init_orca_context", "stop_orca_context"]
