"""The state of one moment: staged tensors and values that later steps cannot change."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash
from torch import Tensor

from stoker.checkpoint.exchange import Peers
from stoker.checkpoint.manifest import encode_info
from stoker.checkpoint.merge import merge
from stoker.checkpoint.plan import Share, share_alone, signature
from stoker.checkpoint.staging import StagedFile, Staging
from stoker.checkpoint.tree import Json, flatten, refuse, unflatten
from stoker.tree import is_sharded


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


class Camera:
    """Takes snapshots; keeps the buffers and the division of work for the next one."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._staging = Staging()
        self._share = Share()
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

    def _agree(self, state: _State) -> tuple[Share, Json]:
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

    def _divide(self, tensors: Mapping[str, Tensor]) -> Share:
        from stoker.checkpoint.divide import local_plan, share_among  # brings in slow packages

        return share_among(self._peers.exchange(local_plan(tensors)), self._peers.rank)


def _sum(text: str) -> str:
    return xxhash.xxh3_128(text.encode()).hexdigest()
