"""Models to train."""

from stoker.dialects.towhee.models import vit

__all__ = ["vit"]
