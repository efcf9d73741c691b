"""Check a checkpoint against its manifest."""

from pathlib import Path

from stoker.checkpoint.format.manifest import Manifest
from stoker.core.errors import CheckpointError
from stoker.storage import FileRecord, Storage, open_storage


def verify_checkpoint(location: str | Path | Storage, *, quick: bool = False) -> list[str]:
    """Return what is wrong with a checkpoint, one sentence per fault; none if it is complete.

    Files that the manifest does not list are ignored.

    Args:
        location: the folder of the checkpoint.
        quick: compare only the sizes of the files. Otherwise every byte is read, from the disk
            rather than from the page cache where the system allows it.
    """
    storage = open_storage(location)
    try:
        files = Manifest.read(storage).files
    except CheckpointError as error:
        return [str(error)]
    faults = (_fault(storage, name, record, quick) for name, record in files.items())
    return [fault for fault in faults if fault]


def _fault(storage: Storage, name: str, record: FileRecord, quick: bool) -> str:
    try:
        size = storage.size(name)
        if size is None:
            return f"'{name}' is missing"
        if size != record.size:
            return f"'{name}' has {size} bytes, expected {record.size}"
        found = record.xxh3_128 if quick else storage.checksum(name)
    except OSError as error:
        return f"'{name}' cannot be read: {error.strerror}"
    if found != record.xxh3_128:
        return f"'{name}' has checksum {found}, expected {record.xxh3_128}"
    return ""
