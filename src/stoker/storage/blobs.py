"""`Blobs`: the requests to an object store that Stoker needs, repeated with back-off."""

import errno
import re
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

from stoker.storage.local import atomic_file

PATIENCE = 60.0
"""Seconds for which a request is repeated while the store does not answer."""

_jitter = Random()  # not the global generator, whose numbers belong to the training

_REPORT_AFTER = 5.0
"""Seconds of silence after which it is reported that a store does not answer."""

_LONGEST_PAUSE = 5.0
_OPTIONS = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(seconds=60)}
_KINDS = {
    "Connect": "no connection",
    "Timeout": "no answer in time",
    **dict.fromkeys(("Request", "Interrupted", "Decode"), "the connection broke"),
}
_MAY_PASS = re.compile("408|409|425|429")
_STATUS = re.compile(r"status code: (\d{3}[A-Za-z ]*)")

T = TypeVar("T")


class Blob(NamedTuple):
    """An object of a store.

    Attributes:
        key: its name below the URL.
        size: its size in bytes.
        version: changes whenever it is replaced.
        modified: when that was, in seconds since 1970.
    """

    key: str
    size: int
    version: str
    modified: float


class Blobs:
    """The objects below a URL.

    Credentials and servers are those of the environment, as the tools of each store use them. They
    appear in no error: errors are `OSError` and name the URL and the kind of fault alone.

    Args:
        url: ``s3://bucket/path``, ``gs://bucket/path`` or ``az://container/path``.
        patience: seconds for which a request is repeated while the store does not answer.
    """

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise ImportError(
                f"'{url}' needs the package obstore: pip install 'stoker[stores]'"
            ) from error
        self.url, self.patience = url, patience
        self._api = obstore
        self._away = threading.Event()
        options: dict[str, Any] = {"client_options": _OPTIONS | {"allow_http": True}}
        options["retry_config"] = {"max_retries": 0, "retry_timeout": timedelta(seconds=60)}
        try:
            self._store: Any = from_url(url, **options)
        except Exception as error:  # whatever it is, its text may hold what the environment holds
            raise OSError(
                errno.EINVAL, f"the settings in the environment are invalid ({_kind(error)})", url
            ) from None

    # Read

    def get(self, key: str) -> bytes:
        """Return an object; a missing one is a `FileNotFoundError`."""
        return bytes(self._call(key, lambda: self._api.get(self._store, key).bytes()))

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        """Return part of an object."""
        if not length:
            return memoryview(b"")
        read = self._api.get_range
        return memoryview(
            self._call(key, lambda: read(self._store, key, start=start, length=length))
        )

    def stat(self, key: str) -> Blob | None:
        """Return size and version of an object, None if there is none."""
        try:
            return _blob(self._call(key, lambda: self._api.head(self._store, key)))
        except FileNotFoundError:
            return None

    def scan(self, folder: str = "") -> list[Blob]:
        """Return all objects below a folder."""

        def read() -> list[Blob]:
            pages = self._api.list(self._store, prefix=folder or None)
            return [_blob(one) for page in pages for one in page]

        return sorted(self._call(folder, read))

    def names(self, folder: str = "") -> list[str]:
        """Return the names of objects and folders directly in a folder."""

        def read() -> list[str]:
            found = self._api.list_with_delimiter(self._store, prefix=folder or None)
            paths = [*found["common_prefixes"], *(one["path"] for one in found["objects"])]
            return sorted({path.removeprefix(folder).strip("/") for path in paths})

        return self._call(folder, read)

    # Write

    def put(self, key: str, data: Any) -> None:
        """Write an object at once: readers see all of it or none."""
        self._call(key, lambda: self._put(key, data))

    def put_file(self, key: str, path: Path) -> str:
        """Write a file as an object, with bounded memory; return its version.

        A large file is sent in parts, which the store shows only when all are there.
        """

        def send() -> str:
            with path.open("rb") as file:
                found = self._api.put(
                    self._store, key, file, chunk_size=16 << 20, max_concurrency=4
                )
            return found["e_tag"] or ""

        return self._call(key, send)

    def get_file(self, key: str, path: Path) -> None:
        """Read an object into a file, with bounded memory; the file appears when it is complete."""

        def receive() -> None:
            with atomic_file(path) as temporary, temporary.open("wb") as file:
                for block in self._api.get(self._store, key).stream(min_chunk_size=8 << 20):
                    file.write(block)

        self._call(key, receive)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object that does not exist; return False if it does."""
        return self._put_if(key, data, "create")

    def replace(self, key: str, data: bytes, version: str) -> bool:
        """Write an object if it still has this version; return False if it has another."""
        return self._put_if(key, data, {"e_tag": version})

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are gone already are left alone."""
        if found := [*keys]:
            with suppress(FileNotFoundError):
                self._call(found[0], lambda: self._api.delete(self._store, found))

    def _put(self, key: str, data: Any, mode: Any = "overwrite") -> None:
        self._api.put(self._store, key, data, mode=mode, use_multipart=False)

    def _put_if(self, key: str, data: bytes, mode: Any) -> bool:
        kinds = self._api.exceptions
        refused = [kinds.AlreadyExistsError, kinds.PreconditionError]
        refused += [] if mode == "create" else [FileNotFoundError]

        def send() -> bool:
            try:
                self._put(key, data, mode)
            except tuple(refused):
                return False
            return True

        # a request whose answer was lost has written it, and its repetition is refused
        return self._call(key, send) or self._holds(key, data)

    def _holds(self, key: str, data: bytes) -> bool:
        try:
            return self.get(key) == data
        except FileNotFoundError:
            return False

    # Repeat

    def _call(self, key: str, request: Callable[[], T]) -> T:
        """Make a request; repeat it, with growing pauses, while the store does not answer."""
        began, pause = time.monotonic(), 0.1
        while True:
            try:
                found = request()
            except Exception as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # it is about a file on the local disk
                fault = self._fault(error, key)
                spent = time.monotonic() - began
                if fault.errno != errno.EIO or spent + pause > self.patience:
                    raise fault from None
                self._report(spent, fault)
                time.sleep(pause * (0.5 + _jitter.random() / 2))
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            if self._away.is_set():
                self._away.clear()
                _log_info(f"'{self.url}' answers again")
            return found

    def _report(self, spent: float, fault: OSError) -> None:
        if spent > _REPORT_AFTER and not self._away.is_set():
            self._away.set()
            _log_warning(f"'{self.url}' does not answer: {fault.strerror}; trying again")

    def _at(self, key: str) -> str:
        return f"{self.url}/{key}".rstrip("/")

    def _fault(self, error: Exception, key: str) -> OSError:
        """Return an error without the text of the library, which may hold signed addresses."""
        kinds = self._api.exceptions
        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(errno.ENOENT, "it does not exist", self._at(key))
        if isinstance(error, kinds.PermissionDeniedError | kinds.UnauthenticatedError):
            reason = f"the store denies access ({_kind(error)}): check the credentials in the "
            return PermissionError(errno.EACCES, f"{reason}environment", self._at(key))
        if isinstance(error, ValueError | TypeError):  # such as an empty part in its name
            return OSError(errno.EINVAL, "it is not a name of an object", self._at(key))
        if isinstance(error, kinds.NotSupportedError | kinds.InvalidPathError):
            return OSError(
                errno.EINVAL, f"the store cannot do this ({_kind(error)})", self._at(key)
            )
        kind = _kind(error)
        is_final = kind.startswith("it answered 4") and not _MAY_PASS.search(kind)
        return OSError(errno.EINVAL if is_final else errno.EIO, kind, self._at(key))


def _kind(error: Exception) -> str:
    """Return what went wrong, without anything of the request."""
    text = str(error)
    if "169.254." in text or "metadata.google" in text:
        return "no credentials in the environment"
    if match := _STATUS.search(text):
        return f"it answered {match[1].strip()}"
    for sign, meaning in _KINDS.items():
        if f"kind: {sign}" in text:
            return meaning
    return type(error).__name__


def _blob(found: Any) -> Blob:
    version, modified = found["e_tag"] or "", found["last_modified"].timestamp()
    return Blob(found["path"], found["size"], version, modified)


def _log_warning(message: str) -> None:
    from stoker.core.log import get_logger  # imports torch

    get_logger().warning(message, ranks=None)


def _log_info(message: str) -> None:
    from stoker.core.log import get_logger

    get_logger().info(message, ranks=None)
