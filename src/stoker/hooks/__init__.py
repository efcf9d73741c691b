"""Hooks: code at named points of a run. `default` returns the hooks of a new `Trainer`."""

from stoker.core.calls import explain_calls
from stoker.events import JsonLines
from stoker.hooks.accumulation import AccumulationSchedule
from stoker.hooks.base.hook import POINTS, Hook, Priority
from stoker.hooks.base.periodic import Periodic
from stoker.hooks.callback import Callback
from stoker.hooks.checkpoint import Checkpoint
from stoker.hooks.cost_report import Budget, CostReport, OverBudget
from stoker.hooks.derive import Derive
from stoker.hooks.device_stats import DeviceStats
from stoker.hooks.early_stopping import EarlyStopping
from stoker.hooks.ema import EMA
from stoker.hooks.freeze_layers import FreezeLayers
from stoker.hooks.gradients import GradNorm, NaNGuard
from stoker.hooks.heartbeat import Heartbeat
from stoker.hooks.keep_best import KeepBest
from stoker.hooks.learning_rate import LR, Plateau
from stoker.hooks.ledger import Ledger
from stoker.hooks.live_curve import LiveCurve, has_widgets
from stoker.hooks.loss import Loss
from stoker.hooks.memory import Memory
from stoker.hooks.metrics import Metrics
from stoker.hooks.profiler import Profiler
from stoker.hooks.progress import Progress
from stoker.hooks.prune import Prune
from stoker.hooks.ray_report import RayReport, in_ray_worker
from stoker.hooks.save_weights import SaveWeights
from stoker.hooks.swa import SWA
from stoker.hooks.time_limit import TimeLimit
from stoker.hooks.timing import Throughput, Timing
from stoker.hooks.write import LogFile, Write

__all__ = [
    "EMA",
    "LR",
    "POINTS",
    "SWA",
    "AccumulationSchedule",
    "Budget",
    "Callback",
    "Checkpoint",
    "CostReport",
    "Derive",
    "DeviceStats",
    "EarlyStopping",
    "FreezeLayers",
    "GradNorm",
    "Heartbeat",
    "Hook",
    "KeepBest",
    "Ledger",
    "LiveCurve",
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
    "Prune",
    "RayReport",
    "SaveWeights",
    "Throughput",
    "TimeLimit",
    "Timing",
    "Write",
    "default",
    "in_ray_worker",
]


def default(
    *, log_every: int = 50, progress: bool = True, checkpoint: Checkpoint | None = None
) -> list[Hook]:
    """Return the hooks of a `Trainer` that was given none.

    They report loss, learning rate and timing and show a progress bar, and in a notebook with
    ipywidgets a `LiveCurve`. In a run with a folder they also write ``metrics.jsonl``,
    ``log.txt``, ``ledger.jsonl``, checkpoints and the final weights. Extend the list with
    ``hooks=[*hooks.default(), MyHook()]``.

    Args:
        log_every: How many steps between two lines of ``metrics.jsonl``.
        progress: Show a progress bar and, in a notebook, curves.
        checkpoint: When to save and what to keep, instead of the default.
    """
    bar: list[Hook] = [Progress()] if progress else []
    if progress and has_widgets():
        bar.append(LiveCurve())
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


explain_calls(globals(), __all__)
