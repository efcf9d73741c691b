"""Models and what is done with them: which layers learn, how fast, and two small transformers."""

from stoker.nn import lr
from stoker.nn.freeze import LayerFreezer
from stoker.nn.groups import parameter_groups
from stoker.nn.transformer import Transformer
from stoker.nn.vit import ViT

__all__ = ["LayerFreezer", "Transformer", "ViT", "lr", "parameter_groups"]
