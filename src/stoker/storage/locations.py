"""Locations: local paths, URLs of object stores, and the folders that stand for such a URL here.

    $STOKER_CACHE/runs/s3/bucket/runs/a       the working folder of a run whose place is a store
    $STOKER_CACHE/copies/s3/bucket/runs/a     what commands have read of a run in a store

Both are functions of the URL, so a run that starts again on this machine finds its files. A path in
``copies`` also leads back to its store: `open_storage` opens the store.
"""

import os
import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from stoker.core.errors import UnsupportedURLError
from stoker.storage.local import LocalStorage
from stoker.storage.storage import Storage

_STORES = ("s3", "gs", "az")
_SPELLINGS = {
    **dict.fromkeys(("s3a", "s3n", "r2"), "s3"),
    **dict.fromkeys(("gcs",), "gs"),
    **dict.fromkeys(("azure", "abfs", "abfss", "adl", "wasb", "wasbs"), "az"),
}
_OTHERS = (
    *("hdfs", "webhdfs", "http", "https", "ftp", "sftp", "ssh"),
    *("hf", "oci", "memory", "dbfs"),
)
_REMOTE = {*_STORES, *_SPELLINGS, *_OTHERS}
"""Schemes that are recognized after ``Path("s3://bucket")`` has dropped one of the slashes."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/{1,2})")
"""A scheme has at least two characters: ``C:/`` is a Windows drive."""

_SERVERS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURE_STORAGE_ACCOUNT_NAME"),
}
"""The variables that choose the server: buckets of the same name on two servers are two."""


def _split(value: str | Path, what: str) -> tuple[str, str] | None:
    """Return the scheme of a URL and the rest, None for a local path."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{what} is {value!r}, expected a path")
    text = os.fspath(value)
    match = _URL.match(text)
    if match is None:
        return None
    scheme = match[1].lower()
    if scheme == "file" and urlsplit(text).netloc in ("", "localhost"):
        return None
    if match[2] == "//" or scheme in _REMOTE:
        return scheme, text[match.end() :]
    return None


def local_path(value: str | Path, what: str = "path") -> Path:
    """Return the local path that a user passed; a ``file://`` URL becomes the path it names.

    Args:
        value: a path, absolute or relative. Names may contain colons.
        what: the argument it was passed as, for the error.

    Raises:
        UnsupportedURLError: it is a URL of something other than a local file.
    """
    if _split(value, what) is not None:
        raise UnsupportedURLError(f"{what} is '{_without_secrets(value)}', expected a local path")
    text = os.fspath(value)
    is_url = text[:5].lower() == "file:" and _URL.match(text) is not None
    return Path(unquote(urlsplit(text).path)) if is_url else Path(value)


def store_url(value: str | Path, what: str = "path") -> str | None:
    """Return the URL of a location in an object store, None for a local path.

    Raises:
        UnsupportedURLError: it is another kind of URL, or has parts that no store can have.
    """
    found = _split(value, what)
    if found is None:
        return None
    scheme, rest = found
    shown = _without_secrets(value)
    if scheme not in _STORES:
        near = f"; did you mean '{_SPELLINGS[scheme]}://'?" if scheme in _SPELLINGS else ""
        raise UnsupportedURLError(
            f"{what} is '{shown}', expected a local path or a URL that begins with s3://, gs:// or "
            f"az://{near}"
        )
    if "@" in rest.partition("/")[0] or "?" in rest or "#" in rest:
        raise UnsupportedURLError(
            f"{what} is '{shown}' with credentials or options in the URL: set them in the "
            "environment, and pass only the bucket and the path"
        )
    parts = rest.rstrip("/").split("/")
    if not parts[0] or any(part in ("", ".", "..") for part in parts):
        raise UnsupportedURLError(
            f"{what} is '{shown}', expected a bucket and a path without empty parts: "
            f"'{scheme}://bucket/path'"
        )
    return f"{scheme}://{'/'.join(parts)}"


def _without_secrets(value: str | Path) -> str:
    """Return a URL without user, password and options, which may be credentials."""
    text = os.fspath(value)
    match = _URL.match(text)
    if match is None:
        return text
    rest = re.split(r"[?#]", text[match.end() :])[0]
    place, slash, path = rest.partition("/")
    return f"{match[0]}{place.rpartition('@')[2]}{slash}{path}"


def hide_credentials(text: str) -> str:
    """Return a text without the users, passwords and options of the URLs in it."""
    text = re.sub(r"(://)[^/\s'\"]*@", r"\1", text)
    return re.sub(r"(://[^\s'\"?#]*)[?#][^\s'\"]*", r"\1", text)


def cache_folder() -> Path:
    """Return the folder for what can be read again: ``$STOKER_CACHE``, or that of the system."""
    if chosen := os.environ.get("STOKER_CACHE"):
        return Path(chosen).absolute()
    usual = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    base = Path(os.environ.get("XDG_CACHE_HOME") or usual)
    return base.expanduser().absolute() / "stoker"


def working_folder(value: str | Path, what: str = "path") -> Path:
    """Return the folder in which a run works: the path itself, or the one that a URL stands for."""
    url = store_url(value, what)
    return local_path(value, what) if url is None else _inside("runs", url)


def copy_folder(url: str) -> Path:
    """Return the folder for the copies of what is read from a store."""
    return _inside("copies", url)


def _inside(tree: str, url: str) -> Path:
    scheme, _, rest = url.partition("://")
    values = (os.environ.get(name) for name in _SERVERS[scheme])
    server = next((one for one in values if one), "").rpartition("//")[2].rpartition("@")[2]
    server = re.sub(r"[^A-Za-z0-9.-]", "_", server.rstrip("/"))
    return cache_folder().joinpath(tree, f"{scheme}@{server}" if server else scheme, rest)


def url_of(path: str | Path) -> str | None:
    """Return the URL that a folder in the cache stands for, None for other folders."""
    return _url_in("runs", path) or copied_url(path)


def copied_url(path: str | Path) -> str | None:
    """Return the URL that a folder of copies stands for, None for other folders."""
    return _url_in("copies", path)


def _url_in(tree: str, path: str | Path) -> str | None:
    try:
        parts = Path(path).absolute().relative_to(cache_folder() / tree).parts
    except ValueError:
        return None
    return f"{parts[0].partition('@')[0]}://{'/'.join(parts[1:])}" if len(parts) > 1 else None


def display(path: str | Path) -> str:
    """Return a location as users know it: the URL of a folder that stands for one."""
    return url_of(path) or str(path)


def open_storage(location: str | Path | Storage, what: str = "path") -> Storage:
    """Return the `Storage` of a location; one that is a `Storage` already is returned as it is."""
    if not isinstance(location, str | Path):
        return location
    url = store_url(location, what) or copied_url(location)
    if url is None:
        return LocalStorage(local_path(location, what))
    from stoker.storage.object_store import ObjectStorage

    return ObjectStorage(url)
