"""`TensorBoardCallback`: write results to TensorBoard."""

from collections.abc import Sequence
from pathlib import Path

from stoker import Hook, events, hooks
from stoker.dialects.orca.learn.pytorch.callbacks.base import Callback


class TensorBoardCallback(Callback):
    """Write to ``log_dir`` every "epoch", "batch" or number of updates."""

    def __init__(self, log_dir: str | Path, freq: str | int = "epoch") -> None:
        is_count = isinstance(freq, int) and not isinstance(freq, bool) and freq > 0
        if not is_count and freq not in ("epoch", "batch"):
            raise ValueError(f"freq is 'epoch', 'batch' or a number of updates, got {freq!r}")
        self.log_dir = Path(log_dir)
        self.freq = {"epoch": "1ep", "batch": "1st"}.get(str(freq), freq)

    def hooks(self) -> Sequence[Hook]:
        """Return the writing hook."""
        return (hooks.LR(), hooks.Write(events.TensorBoard(self.log_dir), every=self.freq))
