"""Copy checkpoints from the working folder of a run to a store."""

from collections.abc import Callable, Iterator

from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.names import MANIFEST, checkpoint_name
from stoker.checkpoint.format.tensor_file import TensorReader
from stoker.checkpoint.write.commit import publish
from stoker.core.errors import CheckpointError
from stoker.storage import LocalStorage, Storage, crash_points
from stoker.storage.object_store import PART

_PARTIAL = ".{}.partial-upload"


def upload(local: LocalStorage, store: Storage, step: int, check_lease: Callable[[], None]) -> bool:
    """Copy a checkpoint to a store, where it becomes visible when it is complete.

    Args:
        local: the folder of checkpoints in the working folder.
        store: the folder of checkpoints in the store.
        step: the checkpoint.
        check_lease: raises if another process has taken the store.

    Returns:
        False if the store has it already.

    Raises:
        CheckpointError: the checkpoint in the working folder is damaged.
        OSError: the store does not accept it.
    """
    name = checkpoint_name(step)
    source = local.below(name)
    manifest = Manifest.read(source)
    target = store.below(name)
    if target.size(MANIFEST) is not None and target.read(MANIFEST) == source.read(MANIFEST):
        return False
    partial = _PARTIAL.format(name)
    folder = store.below(partial)
    for file, expected in manifest.files.items():
        found = folder.write(file, _blocks(source, file))
        if found != expected:
            raise CheckpointError(f"'{file}' in '{source}' is damaged: it is not uploaded")
    crash_points.at("uploaded")
    publish(store, partial, manifest, check_lease)
    return True


def _blocks(source: LocalStorage, file: str) -> Iterator[bytes]:
    cuts = TensorReader(source, file).cuts() if file.endswith(".safetensors") else []
    return source.blocks(file, cuts, PART)
