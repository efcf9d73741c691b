"""Callbacks, and `MainCallback`, which owns the step."""

from stoker.dialects.orca.learn.pytorch.callbacks.base import Callback
from stoker.dialects.orca.learn.pytorch.callbacks.maincallback import MainCallBack, MainCallback

__all__ = ["Callback", "MainCallBack", "MainCallback"]
