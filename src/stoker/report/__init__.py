"""Reports on runs: goodput, and a document in one file."""

from stoker.rundir.goodput import Goodput, Loss, goodput_of

__all__ = ["Goodput", "Loss", "goodput_of"]
