"""Snapshots: a copy of the state of one step, which later steps cannot change."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import xxhash
from torch import Tensor

from stoker.checkpoint.format.manifest import encode_info
from stoker.checkpoint.format.names import STATE, frozen_file, rank_file
from stoker.checkpoint.format.state_tree import Json, flatten, unflatten, unsupported
from stoker.checkpoint.format.tensor_file import TensorEntry, TensorFile
from stoker.checkpoint.sharding.rank_channel import RankChannel
from stoker.checkpoint.sharding.write_plan import (
    WritePlan,
    merge_values,
    plan_single_process,
    signature,
)
from stoker.core.tree import is_sharded

Blocks: TypeAlias = list[memoryview | bytes]
"""The bytes of a file, in order."""


class StagedFile:
    """The bytes of one file of tensors, in a buffer."""

    def __init__(self, layout: TensorFile, *, pinned: bool = False) -> None:
        self.layout = layout
        self.header = layout.header()
        self._buffer = torch.empty(layout.size, dtype=torch.uint8, pin_memory=pinned)
        self._views = {
            entry.name: _view(self._buffer, layout.offsets[entry.name], entry)
            for entry in layout.entries
        }

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return len(self.header) + self.layout.size

    def fill(self, sources: Mapping[str, Tensor]) -> None:
        """Copy the tensors into the buffer; copies from a device may still be in flight."""
        for name, view in self._views.items():
            view.copy_(sources[name], non_blocking=True)

    def bytes_of(self, name: str) -> memoryview:
        """Return the bytes of one tensor, without a copy."""
        start = self.layout.offsets[name]
        return self._buffer.numpy().data[start : start + self._views[name].nbytes]

    def blocks(self, names: Collection[str] | None = None, *, by_tensor: bool = False) -> Blocks:
        """Return the bytes of the file in order, without a copy.

        Args:
            names: return the bytes of a file that has only these tensors.
            by_tensor: cut them between tensors, so that a tensor that stays the same makes blocks
                that stay the same.
        """
        layout = self.layout if names is None else self.layout.only(names)
        data, ends = self._buffer.numpy().data, {*layout.cuts()} if by_tensor else {layout.size}
        blocks: Blocks = [self.header if names is None else layout.header()]
        runs: list[list[int]] = []
        for entry in layout.entries:
            start = self.layout.offsets[entry.name]
            if runs and runs[-1][1] == start:
                runs[-1][1] = start + entry.size
            else:
                runs.append([start, start + entry.size])
            if layout.offsets[entry.name] + entry.size in ends:
                parts = [data[begin:end] for begin, end in runs]
                blocks += [b"".join(parts)] if by_tensor and len(parts) > 1 else parts
                runs = []
        return blocks


class Staging:
    """The staged files of one rank; buffers are reused while the shapes stay the same."""

    def __init__(self) -> None:
        self._files: dict[str, StagedFile] = {}

    def copy(self, files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, StagedFile]:
        """Copy the tensors of each file, overwriting what was copied before."""
        kept, self._files = self._files, {}
        for file, sources in files.items():
            entries = [TensorEntry(name, t.dtype, tuple(t.shape)) for name, t in sources.items()]
            layout = TensorFile(entries)
            staged = kept.pop(file, None)
            if staged is None or staged.layout.entries != layout.entries:
                staged = None  # free its memory before allocating the new buffer
                staged = StagedFile(layout, pinned=any(t.is_cuda for t in sources.values()))
            staged.fill(sources)
            self._files[file] = staged
        if any(not tensor.is_cpu for sources in files.values() for tensor in sources.values()):
            torch.accelerator.synchronize()
        return dict(self._files)


def _view(buffer: Tensor, start: int, entry: TensorEntry) -> Tensor:
    return buffer[start : start + entry.size].view(entry.dtype).view(entry.shape)


@dataclass(slots=True)
class Snapshot:
    """What one rank writes for a checkpoint, and what goes into the manifest."""

    step: int
    info: dict[str, Any]
    staged: dict[str, StagedFile]
    values: dict[str, Json]
    split: dict[str, Json]

    def files(
        self, frozen: Mapping[str, Collection[str]], *, by_tensor: bool = False
    ) -> dict[str, Blocks]:
        """Return the bytes of each file; see `StagedFile.blocks`.

        Args:
            frozen: file → the names of its tensors that go into a file of their own.
            by_tensor: cut the bytes between tensors.
        """
        blocks: dict[str, Blocks] = {}
        for file, staged in self.staged.items():
            apart = frozen.get(file, ())
            others = staged.layout.offsets.keys() - apart if apart else None
            if apart:
                blocks[frozen_file(file)] = staged.blocks(apart, by_tensor=by_tensor)
            if others or not apart:
                blocks[file] = staged.blocks(others, by_tensor=by_tensor)
        for name, tree in self.values.items():
            blocks[name] = [json.dumps(tree).encode()]
        return blocks

    @property
    def size(self) -> int:
        """The bytes of tensors that this rank writes."""
        return sum(staged.size for staged in self.staged.values())


@dataclass(slots=True)
class _State:
    """A state, flattened."""

    tensors: dict[str, Tensor]
    values: Json
    own_tensors: dict[str, Tensor]
    own_values: Json
    info: dict[str, Any]


class Snapshotter:
    """Takes snapshots, and keeps the buffers and the write plan for the next one."""

    def __init__(self, channel: RankChannel) -> None:
        self._channel = channel
        self._staging = Staging()
        self._plan = WritePlan()
        self._planned_for: list[str] | None = None

    def take(self, step: int, shared: Any, own: Any, info: dict[str, Any]) -> Snapshot:
        """Copy the state; all ranks take part. The previous snapshot is overwritten."""
        state = self._flatten(shared, own, info)
        plan, shared_values = self._agree(state)
        files, rank = plan.files(state.tensors), self._channel.rank
        if state.own_tensors:
            files[rank_file(rank, "safetensors")] = state.own_tensors
        values = {rank_file(rank, "json"): state.own_values}
        if rank == 0:
            values[STATE] = shared_values
        with self._channel.fail_together():  # memory may run out
            staged = self._staging.copy(files)
        return Snapshot(step, state.info, staged, values, plan.split)

    def _flatten(self, shared: Any, own: Any, info: dict[str, Any]) -> _State:
        with self._channel.fail_together():
            info = unflatten({}, encode_info(info))  # a copy
            tensors, values = flatten(shared)
            own_tensors, own_values = flatten(own)
            for key, tensor in own_tensors.items():
                if is_sharded(tensor):
                    raise unsupported(("own", key), "a DTensor", "expected it in the shared state")
            return _State(tensors, values, own_tensors, own_values, info)

    def _agree(self, state: _State) -> tuple[WritePlan, Json]:
        """Return the plan of this rank and the merged values; plan again only for new shapes."""
        if self._channel.world_size == 1:
            return plan_single_process(state.tensors), state.values
        text = json.dumps(state.values)
        digests = self._channel.all_gather([_digest(signature(state.tensors)), _digest(text)])
        if (shapes := [shape for shape, _ in digests]) != self._planned_for:
            self._plan = self._make_plan(state.tensors)
            self._planned_for = shapes
        if len({values for _, values in digests}) == 1:
            return self._plan, state.values
        return self._plan, merge_values(self._channel.all_gather(json.loads(text)))

    def _make_plan(self, tensors: Mapping[str, Tensor]) -> WritePlan:
        # imports slow packages
        from stoker.checkpoint.sharding.planner import local_items, plan_for_rank

        return plan_for_rank(self._channel.all_gather(local_items(tensors)), self._channel.rank)


def _digest(text: str) -> str:
    return xxhash.xxh3_128(text.encode()).hexdigest()
