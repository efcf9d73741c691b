"""The state of one moment: staged tensors and values that later steps cannot change."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import Tensor

from stoker.checkpoint.format.manifest import encode_info
from stoker.checkpoint.format.state_tree import Json, flatten, refuse, unflatten
from stoker.checkpoint.format.tensor_file import Entry, TensorFile
from stoker.checkpoint.sharding.rank_channel import RankChannel
from stoker.checkpoint.sharding.write_plan import WritePlan, merge, share_alone, signature
from stoker.core.tree import is_sharded


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


@dataclass(slots=True)
class Snapshot:
    """What one process has to write for a checkpoint, and what the manifest will say."""

    step: int
    info: dict[str, Any]
    staged: dict[str, StagedFile]
    values: dict[str, Json]
    split: dict[str, Json]

    def files(self) -> dict[str, list[memoryview | bytes]]:
        """The bytes of each file."""
        blocks: dict[str, list[memoryview | bytes]] = {}
        for name, staged in self.staged.items():
            blocks[name] = [*staged.blocks()]
        for name, tree in self.values.items():
            blocks[name] = [json.dumps(tree).encode()]
        return blocks

    @property
    def size(self) -> int:
        """How many bytes of tensors this process writes."""
        return sum(staged.size for staged in self.staged.values())


@dataclass(slots=True)
class _State:
    """A state on its way to a snapshot."""

    tensors: dict[str, Tensor]
    values: Json
    own_tensors: dict[str, Tensor]
    own_values: Json
    info: dict[str, Any]


class Snapshotter:
    """Takes snapshots; keeps the buffers and the division of work for the next one."""

    def __init__(self, peers: RankChannel) -> None:
        self._peers = peers
        self._staging = Staging()
        self._share = WritePlan()
        self._shared_for: list[str] | None = None

    def take(self, step: int, shared: Any, own: Any, info: dict[str, Any]) -> Snapshot:
        """Copy the state; every process takes part. The snapshot before it is overwritten."""
        state = self._flatten(shared, own, info)
        share, values = self._agree(state)
        files = share.files(state.tensors)
        name = f"rank-{self._peers.rank:05}"
        if state.own_tensors:
            files[f"{name}.safetensors"] = state.own_tensors
        texts = {f"{name}.json": state.own_values}
        if self._peers.rank == 0:
            texts["state.json"] = values
        with self._peers.together():  # there may be no memory for it
            staged = self._staging.copy(files)
        return Snapshot(step, state.info, staged, texts, share.split)

    def _flatten(self, shared: Any, own: Any, info: dict[str, Any]) -> _State:
        with self._peers.together():
            info = unflatten({}, encode_info(info))  # a copy
            tensors, values = flatten(shared)
            own_tensors, own_values = flatten(own)
            for key, tensor in own_tensors.items():
                if is_sharded(tensor):
                    raise refuse(("own", key), "a DTensor", "expected it among the shared state")
            return _State(tensors, values, own_tensors, own_values, info)

    def _agree(self, state: _State) -> tuple[WritePlan, Json]:
        """Who writes what, and the values of all; planned anew only when shapes have changed."""
        if self._peers.world_size == 1:
            return share_alone(state.tensors), state.values
        text = json.dumps(state.values)
        sums = self._peers.exchange([_sum(signature(state.tensors)), _sum(text)])
        if (shapes := [shape for shape, _ in sums]) != self._shared_for:
            self._share = self._divide(state.tensors)
            self._shared_for = shapes
        if len({values for _, values in sums}) == 1:
            return self._share, state.values
        return self._share, merge(self._peers.exchange(json.loads(text)))

    def _divide(self, tensors: Mapping[str, Tensor]) -> WritePlan:
        from stoker.checkpoint.sharding.planner import (  # brings in slow packages
            local_plan,
            share_among,
        )

        return share_among(self._peers.exchange(local_plan(tensors)), self._peers.rank)


def _sum(text: str) -> str:
    return xxhash.xxh3_128(text.encode()).hexdigest()
