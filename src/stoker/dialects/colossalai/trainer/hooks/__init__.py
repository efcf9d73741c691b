"""The built-in hooks."""

from stoker.dialects.colossalai.trainer.hooks._base_hook import BaseHook
from stoker.dialects.colossalai.trainer.hooks._checkpoint_hook import (
    LoadCheckpointHook,
    SaveCheckpointHook,
)
from stoker.dialects.colossalai.trainer.hooks._log_hook import (
    LogMemoryByEpochHook,
    LogMetricByEpochHook,
    LogMetricByStepHook,
    LogTimingByEpochHook,
    TensorboardHook,
)
from stoker.dialects.colossalai.trainer.hooks._lr_scheduler_hook import LRSchedulerHook
from stoker.dialects.colossalai.trainer.hooks._metric_hook import (
    Accuracy1DHook,
    Accuracy2DHook,
    Accuracy2p5DHook,
    Accuracy3DHook,
    AccuracyHook,
    LossHook,
    MetricHook,
    ThroughputHook,
)

BasicHook = BaseHook

__all__ = [
    "Accuracy1DHook",
    "Accuracy2DHook",
    "Accuracy2p5DHook",
    "Accuracy3DHook",
    "AccuracyHook",
    "BaseHook",
    "BasicHook",
    "LRSchedulerHook",
    "LoadCheckpointHook",
    "LogMemoryByEpochHook",
    "LogMetricByEpochHook",
    "LogMetricByStepHook",
    "LogTimingByEpochHook",
    "LossHook",
    "MetricHook",
    "SaveCheckpointHook",
    "TensorboardHook",
    "ThroughputHook",
]
