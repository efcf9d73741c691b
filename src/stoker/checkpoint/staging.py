"""Buffers that hold a copy of the state while it is written.

One buffer per file, laid out as the file is: the copy of a tensor into it is the only one that is
made, and the file is written from it in large blocks. Buffers are kept between saves, since memory
that is new costs ten times the copy: every page of it has to be brought in first.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from stoker.checkpoint.tensorfile import Entry, TensorFile


class StagedFile:
    """The bytes of one file of tensors."""

    def __init__(self, layout: TensorFile, *, pinned: bool = False) -> None:
        self.layout = layout
        self.header = layout.header()
        self._buffer = torch.empty(layout.size, dtype=torch.uint8, pin_memory=pinned)
        self._views = {
            entry.name: _view(self._buffer, layout.places[entry.name], entry)
            for entry in layout.entries
        }

    @property
    def size(self) -> int:
        """How many bytes the file will have."""
        return len(self.header) + self.layout.size

    def fill(self, sources: Mapping[str, Tensor]) -> None:
        """Copy the tensors; those of a device may still be on their way when this returns."""
        for name, view in self._views.items():
            view.copy_(sources[name], non_blocking=True)

    def blocks(self) -> list[memoryview]:
        """The bytes in order, without a copy."""
        return [memoryview(self.header), self._buffer.numpy().data]


class Staging:
    """The staged files of one process, used again for every save of the same shapes."""

    def __init__(self) -> None:
        self._files: dict[str, StagedFile] = {}

    def copy(self, files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, StagedFile]:
        """The tensors of each file, copied. What was copied before is overwritten."""
        kept, self._files = self._files, {}
        for file, sources in files.items():
            entries = [Entry(name, t.dtype, tuple(t.shape)) for name, t in sources.items()]
            layout = TensorFile(entries)
            staged = kept.pop(file, None)
            if staged is None or staged.layout.entries != layout.entries:
                staged = None  # its memory is free before the new one is asked for
                staged = StagedFile(layout, pinned=any(t.is_cuda for t in sources.values()))
            staged.fill(sources)
            self._files[file] = staged
        if any(not tensor.is_cpu for sources in files.values() for tensor in sources.values()):
            torch.accelerator.synchronize()
        return dict(self._files)


def _view(buffer: Tensor, start: int, entry: Entry) -> Tensor:
    return buffer[start : start + entry.size].view(entry.dtype).view(entry.shape)
