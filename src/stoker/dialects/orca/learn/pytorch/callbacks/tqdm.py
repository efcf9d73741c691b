"""`TqdmCallback`: a progress bar."""

from collections.abc import Sequence

from stoker import Hook, hooks
from stoker.dialects.orca.learn.pytorch.callbacks.base import Callback


class TqdmCallback(Callback):
    """Show Stoker's progress bar on rank 0."""

    def hooks(self) -> Sequence[Hook]:
        """Return the progress hook."""
        return (hooks.Progress(),)
