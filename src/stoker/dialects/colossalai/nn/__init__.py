"""Training components: the learning-rate schedulers."""

from stoker.dialects.colossalai.nn import lr_scheduler

__all__ = ["lr_scheduler"]
