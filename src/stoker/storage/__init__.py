"""Where files live: a small `Storage` protocol, with the local disk behind it.

    storage.py         the protocol: read, write, list, delete, publish, lease
    local.py           the local disk, and `atomic_file` for single files outside of checkpoints
    lock.py            the lease of a local folder
    crash_points.py    points of the write path at which tests kill the process

To add an object store, implement `Storage` and return it from `open_storage` for its URLs.
"""

from stoker.storage.local import (
    LocalStorage,
    atomic_file,
    explain_write_errors,
    format_size,
    local_path,
    open_storage,
    write_atomic,
)
from stoker.storage.storage import FileRecord, Lease, Storage

__all__ = [
    "FileRecord",
    "Lease",
    "LocalStorage",
    "Storage",
    "atomic_file",
    "explain_write_errors",
    "format_size",
    "local_path",
    "open_storage",
    "write_atomic",
]
