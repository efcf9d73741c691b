"""Where files live: a small `Storage` protocol, over the local disk or an object store.

storage.py         the protocol: read, write, list, delete, publish, lease
local.py           the local disk, and `atomic_file` for single files outside of checkpoints
lock.py            the lease of a folder
object_store.py    object stores: contents are stored once, a folder is an index of them
blobs.py           the requests to an object store, repeated with back-off
locations.py       paths and URLs: which storage a location means
crash_points.py    points of the write path at which tests kill the process
"""

from stoker.storage.local import (
    LocalStorage,
    atomic_file,
    explain_write_errors,
    format_size,
    write_atomic,
)
from stoker.storage.locations import (
    display,
    local_path,
    open_storage,
    store_url,
    url_of,
    working_folder,
)
from stoker.storage.storage import FileRecord, Lease, Storage

__all__ = [
    "FileRecord",
    "Lease",
    "LocalStorage",
    "Storage",
    "atomic_file",
    "display",
    "explain_write_errors",
    "format_size",
    "local_path",
    "open_storage",
    "store_url",
    "url_of",
    "working_folder",
    "write_atomic",
]
