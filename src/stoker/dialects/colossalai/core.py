"""The global context: ``from colossalai.core import global_context as gpc``."""

from stoker.dialects.colossalai.context import global_context

__all__ = ["global_context"]
