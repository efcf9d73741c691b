"""Models and tools for them: freezing, groups, LR schedules, optimizers, two transformers."""

from stoker.core.calls import explain_calls
from stoker.nn import lr
from stoker.nn.layerwise import Lamb, Lars
from stoker.nn.parameters import LayerFreezer, parameter_groups
from stoker.nn.summary import summary
from stoker.nn.transformer import Transformer, ViT

__all__ = [
    "Lamb",
    "Lars",
    "LayerFreezer",
    "Transformer",
    "ViT",
    "lr",
    "parameter_groups",
    "summary",
]

explain_calls(globals(), __all__)
