"""The default ``graph`` section: whether the model is compiled, and with which backend."""

from stoker.dialects.libai.config import LazyCall
from stoker.dialects.libai.models import BACKEND, GraphBase

graph = {
    "enabled": True,
    "debug": -1,
    "backend": BACKEND,
    "auto_parallel": {
        "enabled": False,
        "enable_auto_parallel_ignore_user_sbp_config": False,
        "trunk_algo": True,
        "sbp_collector": False,
    },
    "train_graph": LazyCall(GraphBase)(is_train=True),
    "global_mode": {"enabled": False},
    "eval_graph": LazyCall(GraphBase)(is_train=False),
}
