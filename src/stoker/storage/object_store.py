"""An object store as a `Storage`: contents are stored once, and a folder is an index of them.

    objects/<checksum>                     contents: files in parts of at most `PART` bytes
    step-00000500/INDEX.json               a published folder: its files, and the parts of each
    .step-00000500.partial-71/<file>       the parts of a file in a folder that is being written
    .lock/00000007.json                    the lease

A part is written by one request and named by its checksum. So an upload that was cut leaves nothing
visible, a part that is there already is not sent again, and nothing is ever renamed. Publishing is
one conditional write of the index. `delete` removes the index first, then the parts that no index
refers to; only the holder of the lease may call it.
"""

import json
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import xxhash

from stoker.core.errors import CheckpointError
from stoker.rundir import files
from stoker.storage import crash_points
from stoker.storage.blobs import Blobs
from stoker.storage.locations import copy_folder
from stoker.storage.lock import Lock, Owner, encode_owner, lease_name
from stoker.storage.storage import FileRecord, OnLost

PART = 32 << 20
"""The largest part of a file, in bytes."""

_AT_ONCE = 4
"""Requests at once. With the part that is being read, memory is bounded by five parts."""

_SMALL = 1 << 16
"""Bytes up to which a JSON file is kept in the index, and a part is sent without a question."""

_DAMAGED = (ValueError, KeyError, TypeError, AttributeError)

INDEX = "INDEX.json"
OBJECTS = "objects"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file: its size, and checksum and size of each part; a small one has its text instead."""

    size: int
    parts: tuple[tuple[str, int], ...]
    text: str | None = None

    @classmethod
    def parse(cls, fields: Any) -> "_Entry":
        if "text" in fields:
            return cls(len(fields["text"].encode()), (), fields["text"])
        parts = tuple((str(name), int(size)) for name, size in fields["parts"])
        return cls(sum(size for _, size in parts), parts)

    def plain(self) -> dict[str, Any]:
        if self.text is not None:
            return {"text": self.text}
        return {"parts": [list(part) for part in self.parts]}


class ObjectStorage:
    """A folder in an object store.

    Files at the top are plain objects. Files of a folder below it are stored once by their
    contents, and become visible together when the folder is published.

    Args:
        url: the top.
        blobs: the connection, if there is one already.
        folder: the folder below the top, with a slash at its end.
    """

    stores_once = True
    """Whether equal contents are stored once, so that it pays to write files tensor by tensor."""

    def __init__(self, url: str, blobs: Blobs | None = None, folder: str = "") -> None:
        self.url = url
        self._folder = folder
        self._given = blobs
        self._written: dict[str, bytes] = {}

    def __str__(self) -> str:
        """Return the URL of the folder."""
        return f"{self.url}/{self._folder}".rstrip("/")

    @cached_property
    def blobs(self) -> Blobs:
        """The connection; it is made when it is used for the first time."""
        return self._given or _connect(self.url, copy_folder(self.url), os.getpid())

    def below(self, name: str) -> "ObjectStorage":
        """Return a folder inside this one."""
        found = ObjectStorage(self.url, self.blobs, f"{self._folder}{name}/")
        found._written = self._written
        return found

    def create(self) -> None:
        """Do nothing: folders exist while there is something in them."""

    def list(self) -> list[str]:
        """Return the names in the folder."""
        if self._index is not None:
            return sorted(self._index)
        return [name for name in self.blobs.names(self._folder) if name != OBJECTS]

    def sizes(self) -> dict[str, int]:
        """Return name → size of the files of a published folder."""
        return {name: entry.size for name, entry in (self._index or {}).items()}

    def contents(self) -> dict[str, int]:
        """Return checksum → size of the parts of a published folder."""
        entries = (self._index or {}).values()
        return {key: size for entry in entries for key, size in entry.parts}

    # Read

    @cached_property
    def _index(self) -> dict[str, _Entry] | None:
        """The files of a published folder, as they were when it was first read."""
        if not self._folder:
            return None
        try:
            return _parse_index(self.blobs.get(self._folder + INDEX))
        except FileNotFoundError:
            return None
        except _DAMAGED:
            return {}  # it lists nothing, so the folder is not complete

    def _entry(self, name: str) -> _Entry | None:
        if self._index is not None:
            return self._index.get(name)
        try:
            return _Entry.parse(json.loads(self.blobs.get(self._folder + name)))
        except FileNotFoundError:
            return None

    def _known(self, name: str) -> _Entry:
        found = self._entry(name)
        if found is None:
            raise FileNotFoundError(2, "it does not exist", f"{self}/{name}")
        return found

    def size(self, name: str) -> int | None:
        """Return the size of a file; a file whose parts are not all there has another size."""
        if not self._folder:
            found = self.blobs.stat(name)
            return found.size if found is not None else None
        entry = self._entry(name)
        if entry is None:
            return None
        missing = sum(size for key, size in entry.parts if self._there.get(key) != size)
        return entry.size - missing

    @cached_property
    def _there(self) -> dict[str, int]:
        """Checksum → size of all parts, as they were when they were first read."""
        found = self.blobs.scan(f"{OBJECTS}/")
        return {one.key.rpartition("/")[2]: one.size for one in found}

    def read(self, name: str) -> bytes:
        """Return the contents of a file."""
        if not self._folder:
            return self.blobs.get(name)
        return bytes(self.read_range(name, 0, self._known(name).size))

    def read_range(self, name: str, start: int, length: int) -> memoryview:
        """Return part of a file, read from the store."""
        if not self._folder:
            return memoryview(bytearray(self.blobs.get(name)[start : start + length]))
        entry = self._known(name)
        if start + length > entry.size:
            raise ValueError(f"'{name}' in '{self}' is shorter than {start + length} bytes")
        if entry.text is not None:
            return memoryview(bytearray(entry.text.encode()[start : start + length]))
        buffer, pieces, offset = memoryview(bytearray(length)), [], 0
        for key, size in entry.parts:
            begin, end = max(start, offset), min(start + length, offset + size)
            if begin < end:
                pieces.append((key, begin - offset, buffer[begin - start : end - start]))
            offset += size
        if len(pieces) == 1:
            self._read_piece(*pieces[0])
        else:
            for done in [_requests().submit(self._read_piece, *piece) for piece in pieces]:
                done.result()
        return buffer

    def _read_piece(self, key: str, start: int, into: memoryview) -> None:
        found = self.blobs.get_range(_object(key), start, len(into))
        if len(found) != len(into):
            raise ValueError(f"an object of '{self}' is shorter than expected")
        into[:] = found

    def checksum(self, name: str) -> str:
        """Return the checksum of a file, read from the store."""
        checksum = xxhash.xxh3_128()
        for block in self.blocks(name):
            checksum.update(block)
        return checksum.hexdigest()

    def blocks(self, name: str) -> Iterator[memoryview | bytes]:
        """Yield a file part by part."""
        if not self._folder:
            yield self.blobs.get(name)
            return
        entry = self._known(name)
        if entry.text is not None:
            yield entry.text.encode()
        for key, size in entry.parts:
            yield self.blobs.get_range(_object(key), 0, size)

    # Write

    def write(self, name: str, blocks: Iterable[memoryview | bytes]) -> FileRecord:
        """Write a file, in parts that are cut at the ends of blocks; only new parts are sent."""
        if not self._folder:
            data = b"".join(blocks)
            self.blobs.put(name, data)
            return FileRecord(len(data), xxhash.xxh3_128(data).hexdigest())
        checksum = xxhash.xxh3_128()
        if name.endswith(".json") and len(data := b"".join(blocks)) <= _SMALL:
            checksum.update(data)
            entry = _Entry(len(data), (), data.decode())
        else:
            entry = self._send_parts(blocks if not name.endswith(".json") else [data], checksum)
        crash_points.at("parts-sent")
        text = json.dumps(entry.plain()).encode()
        self.blobs.put(self._folder + name, text)
        self._written[self._folder + name] = text
        crash_points.at("entry-written")
        return FileRecord(entry.size, checksum.hexdigest())

    def _send_parts(self, blocks: Iterable[memoryview | bytes], checksum: Any) -> _Entry:
        """Send the parts of a file, a few at once; blocks are read as they are sent."""
        parts: list[tuple[str, int]] = []
        sending: list[Future[None]] = []
        for block in blocks:
            for part in _cut(memoryview(block)):
                checksum.update(part)
                key = xxhash.xxh3_128(part).hexdigest()
                parts.append((key, len(part)))
                if len(sending) >= _AT_ONCE:
                    sending.pop(0).result()
                sending.append(_requests().submit(self._send, key, part))
        for one in sending:
            one.result()
        return _Entry(sum(size for _, size in parts), tuple(parts))

    def _send(self, key: str, part: memoryview) -> None:
        """Send a part, unless the store has it; a small one is sent without asking."""
        found = self.blobs.stat(_object(key)) if len(part) > _SMALL else None
        if found is None or found.size != len(part):
            self.blobs.put(_object(key), part)
            crash_points.at("part-sent")

    def publish(self, source: str, target: str, *, replaced: str | None = None) -> None:
        """Write the index of a folder, on the condition that nobody else has written one."""
        text = self._index_text(source)
        key = f"{self._folder}{target}/{INDEX}"
        old = self.blobs.stat(key)
        crash_points.at("before-index")
        if old is None:
            done = self.blobs.create(key, text)
        elif replaced is None:
            raise FileExistsError(f"'{self}/{target}' already exists")
        else:
            self.blobs.put(f"{self._folder}{replaced}/{INDEX}", self.blobs.get(key))
            crash_points.at("set-aside")
            done = self.blobs.replace(key, text, old.version)
        if not done:
            raise FileExistsError(f"'{self}/{target}' was written by another process")
        crash_points.at("index-written")
        self._delete_below(source)

    def _index_text(self, source: str) -> bytes:
        folder = self.below(source)
        if folder._index is not None:
            return self.blobs.get(f"{folder._folder}{INDEX}")
        names = folder.list()
        texts = _requests().map(lambda name: self._entry_text(folder._folder + name), names)
        return json.dumps(dict(zip(names, map(json.loads, texts), strict=True))).encode()

    def _entry_text(self, key: str) -> bytes:
        """Return what was written about a file, by this process or by another rank."""
        return self._written.pop(key, None) or self.blobs.get(key)

    def delete(self, name: str) -> None:
        """Delete a file or folder, and the contents that nothing refers to any more."""
        crash_points.at("before-removal")
        self.blobs.delete([f"{self._folder}{name}/{INDEX}"])
        crash_points.at("index-removed")
        self._delete_below(name)
        self.blobs.delete([self._folder + name])
        self._collect()
        crash_points.at("removed")

    def _delete_below(self, name: str) -> None:
        self.blobs.delete(one.key for one in self.blobs.scan(f"{self._folder}{name}/"))

    def _collect(self) -> None:
        """Delete the parts that no folder refers to."""
        used: set[str] = set()
        objects = []
        for one in self.blobs.scan():
            folder, _, name = one.key.rpartition("/")
            if folder == OBJECTS:
                objects.append(one.key)
            elif folder and folder != files.LOCK:
                data = self.blobs.get(one.key)
                try:
                    entries = _parse_index(data) if name == INDEX else {"": _parse_entry(data)}
                except _DAMAGED:
                    return  # what it refers to is unknown
                used |= {_object(key) for entry in entries.values() for key, _ in entry.parts}
        self.blobs.delete(key for key in objects if key not in used)

    # The folder itself

    def lease(self, on_lost: OnLost = lambda error: None) -> Lock:
        """Take the lease of the folder."""
        lock = _StoreLock(self, on_lost)
        lock.acquire()
        return lock

    def free_bytes(self) -> None:
        """Return None: there is no limit."""


class _StoreLock(Lock):
    """The lease of a folder in a store; each number is created by a conditional write."""

    def __init__(self, storage: ObjectStorage, on_lost: OnLost) -> None:
        super().__init__(Path(), on_lost)
        self._where = str(storage)
        self._blobs = storage.blobs
        self._prefix = f"{files.LOCK}/"

    def _prepare(self) -> None:
        pass

    def _names(self) -> list[str]:
        return self._blobs.names(self._prefix)

    def _read(self, name: str) -> bytes:
        try:
            return self._blobs.get(self._prefix + name)
        except FileNotFoundError:
            return b""

    def _create(self, number: int, owner: Owner) -> bool:
        key = self._prefix + lease_name(number)
        if not self._blobs.create(key, encode_owner(owner)):
            return False
        if self._blobs.create(key, b""):  # it must be refused: the lease is there
            self._blobs.delete([key])
            raise CheckpointError(
                f"the store of '{self._where}' ignores the conditions of writes (If-None-Match), "
                "so two runs could write at once: use a server that supports them"
            )
        return True

    def _write(self, owner: Owner) -> None:
        self._blobs.put(self._prefix + lease_name(self._number), encode_owner(owner))

    def _remove(self, names: Iterable[str]) -> None:
        self._blobs.delete(self._prefix + name for name in names)


_pool: ThreadPoolExecutor | None = None
_making = threading.Lock()


def _requests() -> ThreadPoolExecutor:
    """Return the threads that make requests at once."""
    global _pool  # noqa: PLW0603
    with _making:
        if _pool is None:
            _pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="stoker-store")
        return _pool


def _cut(block: memoryview) -> Iterator[memoryview]:
    block = block.cast("B")
    for start in range(0, len(block), PART):
        yield block[start : start + PART]


def _object(key: str) -> str:
    return f"{OBJECTS}/{key}"


def _parse_entry(text: bytes) -> _Entry:
    return _Entry.parse(json.loads(text))


def _parse_index(text: bytes) -> dict[str, _Entry]:
    return {name: _Entry.parse(fields) for name, fields in json.loads(text).items()}


@cache
def _connect(url: str, server: Path, pid: int) -> Blobs:
    """Connect to a store once per process; the server is part of its place in the cache."""
    return Blobs(url)
