"""`TensorBoardCallback`: results for TensorBoard."""

from collections.abc import Sequence
from pathlib import Path

from stoker import Hook, events, hooks
from stoker.dialects.orca.learn.pytorch.callbacks.base import Callback


class TensorBoardCallback(Callback):
    """Writes into ``log_dir`` each "epoch", "batch" or number of updates; one writer, by update."""

    def __init__(self, log_dir: str | Path, freq: str | int = "epoch") -> None:
        whole = isinstance(freq, int) and not isinstance(freq, bool) and freq > 0
        if not whole and freq not in ("epoch", "batch"):
            raise ValueError(f"freq is 'epoch', 'batch' or a number of updates, got {freq!r}")
        self.log_dir = Path(log_dir)
        self.freq = {"epoch": "1ep", "batch": "1st"}.get(str(freq), freq)

    def hooks(self) -> Sequence[Hook]:
        """The writer."""
        return (hooks.LR(), hooks.Write(events.TensorBoard(self.log_dir), every=self.freq))
