"""Hooks: code at named points of a run. `default` lists those a new trainer has."""

from stoker.events import JsonLines
from stoker.hooks.base.hook import POINTS, Hook, Priority
from stoker.hooks.base.periodic import Periodic
from stoker.hooks.checkpoint import Checkpoint
from stoker.hooks.cost_report import Budget, CostReport, OverBudget
from stoker.hooks.heartbeat import Heartbeat
from stoker.hooks.ledger import Ledger
from stoker.hooks.measure import LR, GradNorm, Loss, Metrics
from stoker.hooks.progress import Progress
from stoker.hooks.ray_report import RayReport, in_ray_worker
from stoker.hooks.stop import EarlyStopping, NaNGuard
from stoker.hooks.timing import Memory, Throughput, Timing
from stoker.hooks.tools import Callback, Profiler
from stoker.hooks.weights import EMA, FreezeLayers, KeepBest, Plateau, SaveWeights
from stoker.hooks.write import LogFile, Write

__all__ = [
    "EMA",
    "LR",
    "POINTS",
    "Budget",
    "Callback",
    "Checkpoint",
    "CostReport",
    "EarlyStopping",
    "FreezeLayers",
    "GradNorm",
    "Heartbeat",
    "Hook",
    "KeepBest",
    "Ledger",
    "LogFile",
    "Loss",
    "Memory",
    "Metrics",
    "NaNGuard",
    "OverBudget",
    "Periodic",
    "Plateau",
    "Priority",
    "Profiler",
    "Progress",
    "RayReport",
    "SaveWeights",
    "Throughput",
    "Timing",
    "Write",
    "default",
    "in_ray_worker",
]


def default(
    *, log_every: int = 50, progress: bool = True, checkpoint: Checkpoint | None = None
) -> list[Hook]:
    """What a trainer has that was given no hooks.

    Loss, learning rate and timing, a progress bar, and for a run with a folder ``metrics.jsonl``,
    ``log.txt``, ``ledger.jsonl``, checkpoints and the final weights. Add to it:
    ``hooks=[*hooks.default(), Mine()]``.
    """
    bar: list[Hook] = [Progress()] if progress else []
    checkpoint = checkpoint or Checkpoint(optional=True)
    return [
        Loss(window=log_every),
        LR(),
        Timing(),
        *bar,
        Write(JsonLines(), every=log_every, optional=True),
        LogFile(),
        checkpoint,
        SaveWeights(optional=True),
        Ledger(checkpoint),
    ]
