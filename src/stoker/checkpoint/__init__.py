"""Checkpoints: what a run is, as a tree of tensors and plain values, kept so that none is lost.

    checkpoints/step-00000500/
        MANIFEST.json               step, info, size and checksum of every file; written last
        model.safetensors           the tensors below "model", by the names of the model itself
        state.safetensors           all other shared tensors
        state.json                  the shared values that are no tensors
        rank-00000.safetensors      what belongs to each process alone, …
        rank-00000.json             … and its values

Where several processes hold different shards, they write ``model-00000-of-00002.safetensors`` and
so on, side by side. No file is ever unpickled.
"""

from stoker.checkpoint.checkpoints import Checkpoints
from stoker.checkpoint.format.state_tree import flatten, unflatten
from stoker.checkpoint.read.load import Loaded
from stoker.checkpoint.retention import Best
from stoker.core.errors import CheckpointError

__all__ = ["Best", "CheckpointError", "Checkpoints", "Loaded", "flatten", "unflatten"]
