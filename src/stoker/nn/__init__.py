"""Models and tools for them: freezing, parameter groups, LR schedules, two transformers."""

from stoker.core.calls import explain_calls
from stoker.nn import lr
from stoker.nn.parameters import LayerFreezer, parameter_groups
from stoker.nn.summary import summary
from stoker.nn.transformer import Transformer, ViT

__all__ = ["LayerFreezer", "Transformer", "ViT", "lr", "parameter_groups", "summary"]

explain_calls(globals(), __all__)
