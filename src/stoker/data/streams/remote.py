"""Data files in an object store: find them, and read ranges of their bytes.

Requests are repeated with back-off while the store does not answer. A range is read on the
condition that the object still is what was indexed, so that no request has to ask for that.

The library that speaks to stores has threads of its own, which a fork does not copy: a forked
process would wait for them for ever. So each process that reads from a store also reads for
processes that are forked from it, such as workers; see `_Relay`.
"""

import errno
import fnmatch
import glob
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from multiprocessing import AuthenticationError, current_process
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, TypeVar

from stoker.core.errors import DataError
from stoker.data.streams.names import data_files
from stoker.storage.blobs import Blob, Blobs
from stoker.storage.locations import copy_folder

T = TypeVar("T")

_AT_ONCE = 8
"""Requests at once."""

_TIME = "modified "
"""Begins the version of an object in a store without entity tags."""


class ChangedError(DataError):
    """A file that is no longer the one that was indexed."""


class _Bucket(Blobs):
    """The objects of a bucket, which are only read."""

    def read(self, key: str, start: int, length: int, version: str) -> bytes | None:
        """Return part of an object, None if it has another version."""
        options: dict[str, Any] = {"range": (start, start + length)}
        if not version.startswith(_TIME):
            options["if_match"] = f'"{version}"'

        def request() -> bytes | None:
            try:
                return bytes(self._api.get(self._store, key, options=options).bytes())
            except self._api.exceptions.PreconditionError:
                return None

        return self._call(key, request)


def _bucket(url: str) -> tuple[_Bucket, str]:
    """Return the bucket of a URL, and the key in it."""
    scheme, _, rest = url.partition("://")
    name, _, key = rest.partition("/")
    bucket = f"{scheme}://{name}"
    return _connect(bucket, copy_folder(bucket), os.getpid()), key


@cache
def _connect(url: str, server: Path, pid: int) -> _Bucket:
    """Connect to a bucket once per process; the server is part of its place in the cache."""
    global _relay  # noqa: PLW0603
    if _relay is None or _relay.pid != pid:
        _relay = _Relay()
    return _Bucket(url)


# Find


def find_objects(url: str, suffixes: Iterable[str]) -> list[str]:
    """Return the URLs of objects that a URL names: one, those below it, or those of a pattern.

    Args:
        url: an object, a folder or a pattern.
        suffixes: the suffixes of the objects to take from a folder.
    """
    bucket, key = _bucket(url)
    if glob.has_magic(key):
        parts = key.split("/")
        fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
        folder = "/".join(parts[:fixed])
        found = [k for k in _keys(bucket, folder) if _matches(k.split("/"), parts)]
        if not found:
            raise ValueError(f"no object matches '{url}'")
        return [f"{bucket.url}/{one}" for one in found]
    if key and bucket.stat(key) is not None:
        return [url]
    keys = _keys(bucket, key)
    if not keys:
        raise FileNotFoundError(errno.ENOENT, "there is no object of this name or below it", url)
    names = [f"{bucket.url}/{one}" for one in keys if not _is_hidden(one, key)]
    return data_files(names, suffixes, url)


def object_versions(urls: Sequence[str], folder: str) -> list[tuple[int, str]]:
    """Return the size and the version of objects in one folder."""
    bucket, _ = _bucket(urls[0])
    keys = [_bucket(url)[1] for url in urls]
    found: dict[str, Blob | None]
    if len(keys) == 1:
        found = {keys[0]: bucket.stat(keys[0])}
    else:
        found = {blob.key: blob for blob in bucket.scan(_prefix(_bucket(folder)[1]))}
    versions = []
    for url, key in zip(urls, keys, strict=True):
        blob = found.get(key)
        if blob is None:
            raise FileNotFoundError(errno.ENOENT, "there is no object of this name", url)
        tag = blob.version.strip('"')  # lists of Azure have no quotes
        versions.append((blob.size, tag or f"{_TIME}{blob.modified}"))
    return versions


def _keys(bucket: _Bucket, folder: str) -> list[str]:
    return [blob.key for blob in bucket.scan(_prefix(folder))]


def _prefix(folder: str) -> str:
    return f"{folder}/" if folder else ""


def _is_hidden(key: str, folder: str) -> bool:
    return any(part.startswith(".") for part in key.removeprefix(folder).split("/"))


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether a key matches a pattern, in which ``**`` stands for any folders."""
    if not pattern or not parts:
        return not pattern and not parts
    hidden = parts[0].startswith(".") and not pattern[0].startswith(".")
    if pattern[0] == "**":
        if _matches(parts, pattern[1:] or ["*"]):
            return True
        return not hidden and _matches(parts[1:], pattern)
    if hidden or not fnmatch.fnmatchcase(parts[0], pattern[0]):
        return False
    return _matches(parts[1:], pattern[1:])


# Read


def read_object(url: str, start: int, length: int, version: str) -> bytes:
    """Return part of an object that still has a version.

    Raises:
        ChangedError: it has another one.
        OSError: the store cannot be read.
    """
    if _relay is not None and _relay.pid != os.getpid():
        found = _relay.ask(url, start, length, version)
    else:
        found = _read(url, start, length, version)
    if found is None:
        raise ChangedError(
            f"'{url}' has changed since the stream was made: its records are no longer those of "
            "the index; make the stream again"
        )
    if len(found) != length:
        raise OSError(errno.EIO, f"the store sent {len(found)} of {length} bytes", url)
    return found


def _read(url: str, start: int, length: int, version: str) -> bytes | None:
    bucket, key = _bucket(url)
    return bucket.read(key, start, length, version)


def at_once(calls: Sequence[Callable[[], T]]) -> list[Callable[[], T]]:
    """Begin some calls in threads; return functions that wait for the result of each."""
    pool = _threads(_AT_ONCE, os.getpid())
    return [pool.submit(call).result for call in calls]


def ahead(call: Callable[[], T]) -> Callable[[], T]:
    """Begin a call that uses `at_once` itself; return a function that waits for its result."""
    return _threads(1, os.getpid()).submit(call).result


@cache
def _threads(count: int, pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="stoker-data")


class _Relay:
    """Reads from stores for processes that were forked from this one.

    Each thread of such a process has a connection of its own.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._key = bytes(current_process().authkey)
        self._listener = Listener(authkey=self._key)
        self._local = threading.local()
        self._run(self._accept)

    def ask(self, *request: Any) -> bytes | None:
        """Let the other process read; called in a forked one."""
        if getattr(self._local, "pid", None) != os.getpid():
            self._local.pid = os.getpid()
            self._local.connection = Client(self._listener.address, authkey=self._key)
        connection: Connection = self._local.connection
        connection.send(request)
        answer = connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return connection.recv_bytes() if answer else None

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except (AuthenticationError, EOFError, ConnectionError):
                continue
            except OSError:  # the listener was closed, at the end of the process
                return
            self._run(self._serve, connection)

    def _serve(self, connection: Connection) -> None:
        try:
            while True:
                request = connection.recv()
                try:
                    found = _read(*request)
                except Exception as error:
                    connection.send(error)
                    continue
                connection.send(found is not None)
                if found is not None:
                    connection.send_bytes(found)
        except (EOFError, OSError):  # the other process has ended
            connection.close()

    @staticmethod
    def _run(target: Callable[..., None], *args: Any) -> None:
        threading.Thread(target=target, args=args, name="stoker-relay", daemon=True).start()


_relay: _Relay | None = None
"""The relay of this process, or of the one that it was forked from."""
