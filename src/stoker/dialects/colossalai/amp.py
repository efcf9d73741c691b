"""The kinds of mixed precision."""

from stoker.dialects.colossalai.context import AMP_TYPE

__all__ = ["AMP_TYPE"]
