"""`TqdmCallback`: a progress bar."""

from collections.abc import Sequence

from stoker import Hook, hooks
from stoker.dialects.orca.learn.pytorch.callbacks.base import Callback


class TqdmCallback(Callback):
    """Stoker's progress bar, on the first process."""

    def hooks(self) -> Sequence[Hook]:
        """The bar."""
        return (hooks.Progress(),)
