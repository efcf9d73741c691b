"""`Mirror`: the files of a run, apart from its checkpoints, here and in a store."""

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from stoker.rundir import files
from stoker.storage.blobs import Blob, Blobs
from stoker.storage.local import write_atomic
from stoker.storage.locations import copied_url, copy_folder, local_path, store_url
from stoker.storage.object_store import INDEX

_STATE = ".store.json"
"""The versions of the files in the store when they were last copied."""


class Mirror:
    """Copies the files of a run between its working folder and a store.

    Files are compared by what was last copied: the version in the store, and size and time here. A
    file that neither side has changed is not copied again.

    Args:
        folder: the working folder.
        blobs: the place of the run in the store.
        skips: returns whether an object is none of these files.
    """

    def __init__(
        self, folder: Path, blobs: Blobs, skips: Callable[[str], bool] | None = None
    ) -> None:
        self._folder, self._blobs = folder, blobs
        self._skips = skips or _is_of_checkpoints
        self._known = self._read_state()

    def pull(self, *, replace: bool) -> None:
        """Copy files from the store.

        Args:
            replace: also those that are here and have another version in the store.
        """
        for blob in self._stored():
            path = self._folder / blob.key
            known = self._known.get(blob.key)
            if path.exists() and (not replace or (known and known[0] == blob.version)):
                continue
            self._blobs.get_file(blob.key, path)
            os.utime(path, (blob.modified, blob.modified))
            self._remember(blob.key, blob.version)
        self._write_state()

    def push(self) -> None:
        """Copy files to the store that have changed here since they were last copied."""
        changed = False
        for key, found in self._local():
            known = self._known.get(key)
            if known is not None and known[1:] == [found.st_size, found.st_mtime_ns]:
                continue
            version = self._blobs.put_file(key, self._folder / key)
            self._known[key] = [version, found.st_size, found.st_mtime_ns]
            changed = True
        if changed:
            self._write_state()

    def has_changed(self) -> bool:
        """Return whether another process has changed the files in the store since the last copy."""
        known = {key: version for key, (version, *_) in self._known.items()}
        return any(known.get(blob.key) != blob.version for blob in self._stored())

    def _stored(self) -> list[Blob]:
        return [one for one in self._blobs.scan() if not self._skips(one.key)]

    def _local(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the regular files of the run, without those that begin with a dot."""
        for parent, folders, names in os.walk(self._folder):
            at = Path(parent).relative_to(self._folder)
            folders[:] = sorted(one for one in folders if not _is_of_checkpoints(str(at / one)))
            for name in sorted(names):
                found = os.lstat(os.path.join(parent, name))
                if stat.S_ISREG(found.st_mode) and not name.startswith("."):
                    yield str(at / name), found

    def _remember(self, key: str, version: str) -> None:
        found = os.lstat(self._folder / key)
        self._known[key] = [version, found.st_size, found.st_mtime_ns]

    def _read_state(self) -> dict[str, list[object]]:
        try:
            return dict(json.loads((self._folder / _STATE).read_text()))
        except (OSError, ValueError, TypeError):
            return {}

    def _write_state(self) -> None:
        if self._known:
            write_atomic(self._folder / _STATE, json.dumps(self._known), durable=False)


def _is_of_checkpoints(key: str) -> bool:
    return key.partition("/")[0] == files.CHECKPOINTS or key.startswith(".")


_PART = re.compile(r"(?:.*/)?objects/[0-9a-f]{32}")
_PARTIAL = re.compile(r"(?:.*/)?\.(?:step|aside)-[^/]*/.*")


def fetch(url: str) -> Path:
    """Return a folder with a copy of what is in a store, or the copy of a single file.

    Of checkpoints there are only empty folders: what is in them is read from the store.

    Raises:
        FileNotFoundError: there is nothing.
    """
    folder, blobs = copy_folder(url), Blobs(url, patience=15.0)
    found = {one.key: one for one in blobs.scan()}
    if not found:
        parent, _, name = url.rpartition("/")
        Blobs(parent, patience=15.0).get_file(name, folder)
        return folder
    _remove_others(folder, found)
    Mirror(folder, blobs, lambda key: _is_of_contents(key) or _is_index(key)).pull(replace=True)
    for key, one in found.items():
        if _is_index(key) and not _is_of_contents(key):
            checkpoint = (folder / key).parent
            checkpoint.mkdir(parents=True, exist_ok=True)
            os.utime(checkpoint, (one.modified, one.modified))
    return folder


def _remove_others(folder: Path, found: Mapping[str, Blob]) -> None:
    """Remove what has been removed from the store since."""
    if folder.is_file():
        folder.unlink()
    for parent, _, names in os.walk(folder, topdown=False):
        at = Path(parent).relative_to(folder)
        for name in names:
            if name != _STATE and str(at / name) not in found:
                os.unlink(os.path.join(parent, name))
        with suppress(OSError):
            os.rmdir(parent)  # fails if it is not empty


def _is_of_contents(key: str) -> bool:
    return _PART.fullmatch(key) is not None or _PARTIAL.fullmatch(key) is not None


def _is_index(key: str) -> bool:
    return key.rpartition("/")[2] == INDEX


def refresh(folder: Path) -> None:
    """Bring a folder of copies up to date; any other folder is left alone."""
    if (url := copied_url(folder)) is not None:
        fetch(url)


def located(value: str | Path, what: str = "path") -> Path:
    """Return the path to read: a local one as it is, for a URL the folder with its copy."""
    url = store_url(value, what)
    if url is None:
        return local_path(value, what)
    try:
        return fetch(url)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "there is nothing in the store", url) from None
