"""Checkpoints: the complete state of a run as a tree of tensors and plain values, on disk.

    checkpoints/step-00000500/
        MANIFEST.json               step, info, size and checksum of every file; written last
        model.safetensors           the tensors under "model", by the names of the model itself
        state.safetensors           all other shared tensors
        model-frozen.safetensors    those of either that do not change, if they have 1 MB or more
        state.json                  the shared values that are not tensors
        rank-00000.safetensors      tensors that belong to one rank alone, …
        rank-00000.json             … and its values

If ranks hold different shards, they write ``model-00000-of-00002.safetensors`` and so on. No file
is ever unpickled.

    checkpoints.py    `Checkpoints`, the folder: save, list, verify, load, prune
    write/            snapshot the state, commit it in the background
    read/             verify a checkpoint, load it in any sharding
    format/           the files: names, manifest, state tree, tensors
    sharding/         saving from several ranks
    retention.py      which checkpoints to keep
"""

from stoker.checkpoint.checkpoints import Checkpoints
from stoker.checkpoint.format.state_tree import flatten, unflatten
from stoker.checkpoint.read.load import Loaded
from stoker.checkpoint.retention import Best
from stoker.core.errors import CheckpointError

__all__ = ["Best", "CheckpointError", "Checkpoints", "Loaded", "flatten", "unflatten"]
