"""`LayerFreezer` with the arguments of Towhee."""

from collections.abc import Iterable

from torch import nn

from stoker import nn as stoker_nn


class LayerFreezer(stoker_nn.LayerFreezer):
    """Freeze and unfreeze the top-level layers of a model; see `stoker.nn.LayerFreezer`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.layer_names = [name for name, _ in model.named_children()]
        self.layer_count = len(self.layer_names)

    def by_idx(self, idx: Iterable[int], freeze: bool = True) -> None:
        """Freeze layers by index; negative indices count from the end."""
        super().by_idx(idx, freeze)

    def set_slice(self, slice_num: int | slice, freeze: bool = True) -> None:
        """Freeze the layers before ``slice_num``; -1 freezes all but the last."""
        super().set_slice(slice_num, freeze)
