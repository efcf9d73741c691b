"""The suite of Orca's PyTorch estimator, of 2.2 and of 2.4."""

import os
import sys
import tempfile
from pathlib import Path

_LEARN = "python/orca/test/bigdl/orca/learn"

SUITE = [
    f"{_LEARN}/test_metrics.py",
    f"{_LEARN}/test_pytorch_basic.py",
    f"{_LEARN}/spark/test_pytorch_estimator.py",
    f"{_LEARN}/ray/pytorch/test_estimator_*_backend.py",
    f"{_LEARN}/ray/pytorch/test_estimator_ray_*s*.py",
    f"{_LEARN}/ray/ctx/test_pytorch_*.py",
    f"{_LEARN}/ray/horovod/test_pytorch_*.py",
    f"{_LEARN}/ray/experimental/test_mmcv_*.py",
    f"{_LEARN}/jep/test_pytorch_*.py",
]
PATHS = ["python/orca"]

_ACTORS = "reads the weights of each of Orca's Ray actors, which stay alive between two calls"
NOT_APPLICABLE = {
    f"{_LEARN}/jep/*": "runs BigDL's own engine in the JVM, which is gone since Orca 2.3",
    f"{_LEARN}/ray/experimental/*": "needs a runner of MMCV",
    "*horovod*::*::test_horovod_initialized_correctly": "calls Horovod itself",
    "*horovod*::*::test_train": _ACTORS,
    "*ray_backend.py::*::test_data_creator": _ACTORS,
}


def stand_in() -> None:
    """Stand in for an old NumPy, a Ray cluster on this machine, and missing data files."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import numpy as np

    np.float = float  # Orca 2.2 is older than NumPy 1.24
    if "pytest" not in sys.orig_argv:
        return  # a process of Ray or Spark, which need not import torch
    _start_ray_where_a_cluster_is_expected()
    _make_missing_tables()


def _start_ray_where_a_cluster_is_expected() -> None:
    from stoker.dialects.orca import common

    start = common._start_ray

    def start_here(cores: int, address: str | None) -> None:
        start(max(4, cores), None if address == "localhost:6379" else address)

    common._start_ray = start_here


def _make_missing_tables() -> None:
    """Make the tables of the suite that a checkout without its resources lacks."""
    from stoker.dialects.orca import shards

    files = shards._files

    def files_or_made(path: str) -> list[str]:
        if os.path.exists(path) or "resources" not in path:
            return files(path)
        rows = "".join(f"{n % 7},{n % 5},{n % 2}\n" for n in range(60))
        made = Path(tempfile.gettempdir()) / f"orca-{os.getuid()}-{os.path.basename(path)}"
        made.write_text("user,item,label\n" + rows)
        return [str(made)]

    shards._files = files_or_made
