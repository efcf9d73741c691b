"""`FreezeLayers`: train only some of the layers."""

from collections.abc import Sequence

from stoker.engine import unwrap
from stoker.hooks.base.hook import Hook, Priority
from stoker.nn import LayerFreezer
from stoker.run import Run


class FreezeLayers(Hook):
    """Freeze layers before training starts, and optionally unfreeze them later.

        FreezeLayers(up_to=-1, until_epoch=2)    # train only the head for two epochs

    Args:
        names: Layers by name; a dotted name selects a nested layer.
        indices: Top-level layers by position; negative indices count from the end.
        up_to: All top-level layers before this position (-1: all but the last), or a slice.
        freeze_bn: Freeze the running statistics of every batch norm.
        until_epoch: Unfreeze the layers after this many epochs. None keeps them frozen.

    See `stoker.nn.LayerFreezer` to freeze layers in your own loop.
    """

    priority = Priority.ADJUST
    same_on_all_ranks = True

    def __init__(
        self,
        names: Sequence[str] = (),
        *,
        indices: Sequence[int] = (),
        up_to: int | slice | None = None,
        freeze_bn: bool = False,
        until_epoch: int | None = None,
    ) -> None:
        self.names = [names] if isinstance(names, str) else names
        self.indices, self.up_to = indices, up_to
        self.freeze_bn = freeze_bn
        self.until_epoch = until_epoch

    def before_train(self, run: Run) -> None:
        """Freeze the layers."""
        if self.until_epoch is None or run.epoch < self.until_epoch:
            self._set(run, freeze=True)

    def before_epoch(self, run: Run) -> None:
        """Unfreeze the layers when ``until_epoch`` is reached."""
        if self.until_epoch is not None and run.epoch == self.until_epoch:
            self._set(run, freeze=False)

    def _set(self, run: Run, *, freeze: bool) -> None:
        freezer = LayerFreezer(unwrap(run.engine.model))
        freezer.by_names(self.names, freeze)
        freezer.by_idx(self.indices, freeze)
        if self.up_to is not None:
            freezer.set_slice(self.up_to, freeze)
        if self.freeze_bn:
            freezer.freeze_bn(freeze=freeze)
