"""From what a user passes, a path or a URL, to a local path or a `Storage`."""

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from stoker.core.errors import UnsupportedURLError
from stoker.storage.local import LocalStorage
from stoker.storage.storage import Storage

_REMOTE = {
    *("s3", "s3a", "s3n", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl", "wasb", "wasbs"),
    *(
        "hdfs",
        "webhdfs",
        "http",
        "https",
        "ftp",
        "sftp",
        "ssh",
        "hf",
        "oci",
        "r2",
        "memory",
        "dbfs",
    ),
}
"""Schemes that are recognized after ``Path("s3://bucket")`` has dropped one of the slashes."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/{1,2})")
"""A scheme has at least two characters: ``C:/`` is a Windows drive."""


def local_path(value: str | Path, what: str = "path") -> Path:
    """Return the local path that a user passed; a ``file://`` URL becomes the path it names.

    Args:
        value: a path, absolute or relative. Names may contain colons.
        what: the argument it was passed as, for the error.

    Raises:
        UnsupportedURLError: it is a URL of something other than a local file.
    """
    text = os.fspath(value)
    match = _URL.match(text)
    if match is None:
        return Path(value)
    scheme, slashes = match[1].lower(), match[2]
    if scheme == "file" and urlsplit(text).netloc in ("", "localhost"):
        return Path(unquote(urlsplit(text).path))
    if slashes == "//" or scheme in _REMOTE:
        raise UnsupportedURLError(
            f"object stores and other URLs are not supported yet: {what} is '{text}', "
            "expected a local path"
        )
    return Path(value)


def open_storage(location: str | Path | Storage, what: str = "path") -> Storage:
    """Return the `Storage` of a location; one that is a `Storage` already is returned as it is."""
    if isinstance(location, str | Path):
        return LocalStorage(local_path(location, what))
    return location
