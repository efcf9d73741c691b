"""Models and tools for them: freezing, parameter groups, LR schedules, two transformers."""

from stoker.nn import lr
from stoker.nn.freeze import LayerFreezer
from stoker.nn.groups import parameter_groups
from stoker.nn.transformer import Transformer
from stoker.nn.vit import ViT

__all__ = ["LayerFreezer", "Transformer", "ViT", "lr", "parameter_groups"]
