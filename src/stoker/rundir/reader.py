"""`RunReader`: the one way to read a run folder."""

import json
import math
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import yaml
from numpy.typing import NDArray

from stoker.checkpoint.format.manifest import Manifest, metrics_in
from stoker.checkpoint.format.names import MANIFEST, step_in_name, stored_copy
from stoker.checkpoint.read.load import verify_checkpoint
from stoker.core.errors import CheckpointError
from stoker.rundir import files
from stoker.rundir.metrics_index import HEAD, Floats, MetricsFile
from stoker.rundir.provenance import flatten, plain_value
from stoker.rundir.safe_folder import SafeFolder, parse_json
from stoker.rundir.status import Status, last_epoch, status_of
from stoker.storage import Storage
from stoker.storage.descriptors import closing_descriptor

KINDS = {
    "train": "useful training",
    "again": "repeated work",
    "members": "lost with processes",
    "startup": "startup",
    "data": "waiting for data",
    "save": "waiting for checkpoints",
    "eval": "evaluation",
    "other": "other",
}
"""What time is spent on, with the label of each kind."""

MEASURED = tuple(kind for kind in KINDS if kind != "again")
"""The kinds that the ledger measures, `members` only in an elastic run."""

_LARGEST = 1e12
_LEDGER_CHUNK = 1 << 20


class Entry(NamedTuple):
    """A line of the ledger: the step of an attempt, and the seconds spent so far, by kind."""

    time: float
    step: int
    spent: Mapping[str, float]


_MEMBER_LISTS = ("left", "joined", "members")


class MemberChange(NamedTuple):
    """A change of the processes of an elastic run."""

    time: float
    step: int
    left: list[int]
    joined: list[int]
    members: list[int]
    seconds: float
    """Until the next step was finished, from when the processes that left had exited."""
    ranks: list[tuple[int, int]]
    """The first and the last logical rank of each member."""


@dataclass
class Attempt:
    """One start of a run."""

    id: str
    entries: list[Entry] = field(default_factory=list)
    pid: int | None = None
    processes: int | None = None
    restarts: int | None = None
    end: str | None = None
    why: str = ""
    changes: list["MemberChange"] = field(default_factory=list)

    @property
    def started(self) -> float:
        """When its process started, in seconds since 1970."""
        first = self.entries[0]
        return first.time - sum(first.spent.values())

    @property
    def seconds(self) -> float:
        """How long it ran, up to its last entry."""
        return sum(self.entries[-1].spent.values())

    @property
    def first_step(self) -> int:
        """The step it started or resumed at."""
        return self.entries[0].step

    @property
    def last_step(self) -> int:
        """The last recorded step."""
        return self.entries[-1].step


class _LedgerFile:
    """The attempts in a ledger. Each refresh reads only the lines that were added."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self.attempts: dict[str, Attempt] = {}
        self.invalid_lines = self._offset = self._file = 0

    def refresh(self, file: int) -> None:
        """Read what is new in the file with this descriptor."""
        found = os.fstat(file)
        if found.st_ino != self._file or found.st_size < self._offset:
            self._reset()
        self._file = found.st_ino
        while data := os.pread(file, _LEDGER_CHUNK, self._offset):
            end = data.rfind(b"\n") + 1
            if not end and len(data) < _LEDGER_CHUNK:
                return  # a line that is still being written
            for line in data[: end or None].split(b"\n"):
                self._add(line)
            self._offset += end or len(data)

    def _add(self, line: bytes) -> None:
        try:
            _add(self.attempts, parse_json(line))
        except (ValueError, TypeError, KeyError):
            self.invalid_lines += bool(line.strip())


def _add(attempts: dict[str, Attempt], row: dict[str, Any]) -> None:
    name, step = row["attempt"], row["step"]
    if type(name) is not str or _count(step) is None:
        raise ValueError
    spent = {kind: _seconds(row[kind]) for kind in MEASURED if kind != "members"}
    spent["members"] = _seconds(row.get("members_lost", 0.0))
    entry = Entry(_seconds(row["time"]), step, spent)
    attempt = attempts.setdefault(name, Attempt(name))
    attempt.entries.append(entry)
    if row.get("event") == "begin":
        counts = [_count(row.get(key)) for key in ("pid", "processes", "restarts")]
        attempt.pid, attempt.processes, attempt.restarts = counts
    elif row.get("event") == "members":
        left, joined, now = ([int(one) for one in row[key]] for key in _MEMBER_LISTS)
        seconds = _seconds(row["seconds"])
        ranks = [(int(first), int(last)) for first, last in row.get("ranks", [])]
        change = MemberChange(entry.time, step, left, joined, now, seconds, ranks)
        attempt.changes.append(change)
        attempt.processes = len(change.members)
    elif row.get("event") == "end":
        attempt.end, attempt.why = str(row.get("end")), str(row.get("why", ""))


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < _LARGEST:
        raise ValueError
    return float(value)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _LARGEST else None


MOST_SHOWN = 500
"""How many checkpoints are listed, the newest."""

_LARGEST_MANIFEST = 1 << 26
_MOST_FAULTS = 20


@dataclass(frozen=True)
class CheckpointInfo:
    """What is known of a checkpoint without loading it.

    Args:
        name: its folder, such as ``step-00000500``.
        step: the step it was saved at.
        size: bytes of all its files.
        time: when it was completed, in seconds since 1970; None if it was not.
        metrics: the results saved with it.
        faults: what is wrong with it.
        verified: whether every byte was checked, not only the sizes.
    """

    name: str
    step: int
    size: int
    time: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    verified: bool = False

    @property
    def state(self) -> Literal["verified", "sizes match", "broken"]:
        """Whether it is valid, as far as it was checked."""
        if self.faults:
            return "broken"
        return "verified" if self.verified else "sizes match"


def list_checkpoints(run: SafeFolder) -> list[CheckpointInfo]:
    """Return the checkpoints of a run, newest first, checked by their manifests and file sizes."""
    folder = run.below(files.CHECKPOINTS)
    steps = {name: step_in_name(name) for name in folder.folders()}
    found = sorted(((s, name) for name, s in steps.items() if s is not None), reverse=True)
    return [_check_sizes(folder.below(name), step) for step, name in found[:MOST_SHOWN]]


def check_every_byte(run: SafeFolder, name: str) -> CheckpointInfo:
    """Return a checkpoint of a run after reading and checking every byte of it.

    Raises:
        FileNotFoundError: there is no such checkpoint.
    """
    step = step_in_name(name)
    if step is None:
        raise FileNotFoundError(name)
    folder = run.below(files.CHECKPOINTS, name)
    with folder.opened():
        info = _check_sizes(folder, step)
    if info.faults:
        return info
    faults = verify_checkpoint(folder.path, structure=False)
    return replace(info, verified=True, faults=faults[:_MOST_FAULTS])


def _check_sizes(folder: SafeFolder, step: int) -> CheckpointInfo:
    name = folder.parts[-1]
    if folder.stat(MANIFEST) is None and (stored := stored_copy(folder.path)) is not None:
        return _check_stored(folder, stored, step)
    sizes = {file: found.st_size for file in folder.files() if (found := folder.stat(file))}
    manifest_file = folder.stat(MANIFEST)
    metrics: dict[str, float] = {}
    try:
        if manifest_file is None or manifest_file.st_size > _LARGEST_MANIFEST:
            raise CheckpointError(f"it has no {MANIFEST}")
        manifest = Manifest.read(folder.path)
        faults = [
            f"'{file}' has {sizes[file]} bytes, expected {record.size}"
            if file in sizes
            else f"'{file}' is missing"
            for file, record in manifest.files.items()
            if sizes.get(file) != record.size
        ]
        metrics = {name: float(value) for name, value in metrics_in(manifest.info).items()}
    except CheckpointError as error:
        faults = [str(error).replace(str(folder.path), name)]
    time = manifest_file.st_mtime if manifest_file is not None else None
    return CheckpointInfo(name, step, sum(sizes.values()), time, metrics, faults[:_MOST_FAULTS])


def _check_stored(folder: SafeFolder, stored: Storage, step: int) -> CheckpointInfo:
    """Check a checkpoint that is in a store, where the folder has only its name and time."""
    name, time = folder.parts[-1], folder.path.stat().st_mtime
    faults = verify_checkpoint(stored, quick=True, structure=False)[:_MOST_FAULTS]
    if faults:
        return CheckpointInfo(name, step, 0, time, faults=faults)
    manifest = Manifest.read(stored)
    size = sum(record.size for record in manifest.files.values())
    metrics = {name: float(value) for name, value in metrics_in(manifest.info).items()}
    return CheckpointInfo(name, step, size, time, metrics)


T = TypeVar("T")

_LARGEST_CONFIG = 1 << 20
_LARGEST_JSON = 1 << 23
_LARGEST_IMAGE = 1 << 24
_LARGEST_HEADER = 1 << 27
_MOST_KEYS = 3000
_MOST_MEDIA = 200
_MEDIA_TAIL = 1 << 21
_ENVIRONMENT = re.compile(r"env(?:-(\d{1,9}))?\.json")
_IMAGE = re.compile(r"[\w.-]{1,200}\.png")
_PNG = b"\x89PNG\r\n\x1a\n"


class Curve(NamedTuple):
    """The values of one name, by step."""

    steps: NDArray[np.int64]
    values: Floats


@dataclass(frozen=True)
class Weights:
    """What the header of the final weights says: numbers, tensors, dtypes, and the file's size."""

    count: int
    tensors: int
    dtypes: list[str]
    size: int


class RunReader:
    """Reads the files of a run.

    No file can make it fail: what is missing reads as empty, and what is broken also adds a line to
    `faults`. It follows no links, reads no more than it must, and leaves out a last line that is
    still being written.

    Args:
        folder: the run folder.
        index: the file in which to save the index of ``metrics.jsonl``; None saves none.
    """

    def __init__(self, folder: SafeFolder | str | Path, index: Path | None = None) -> None:
        self.folder = folder if isinstance(folder, SafeFolder) else SafeFolder(Path(folder))
        self.metrics = MetricsFile(lambda: self.folder.open(files.METRICS), index)
        self._ledger = _LedgerFile()
        self._faults: dict[str, str] = {}

    @property
    def faults(self) -> list[str]:
        """What is wrong with the files that were read, a sentence each."""
        invalid = self.metrics.columns.invalid_lines
        metrics = [_invalid_lines(files.METRICS, invalid)] if invalid else []
        return [*self._faults.values(), *metrics]

    # Configuration and environment

    def config_text(self) -> str | None:
        """Return ``config.yaml`` as it is, None if there is none."""
        return self._read(files.CONFIG, _decode, None, _LARGEST_CONFIG)

    def config(self) -> dict[str, Any]:
        """Return the leaves of ``config.yaml`` by dotted keys, as plain values."""
        nothing: dict[str, Any] = {}
        return flat_values(self._read(files.CONFIG, _parse_config, nothing, _LARGEST_CONFIG))

    def environment(self, attempt: int = 1) -> dict[str, Any]:
        """Return the environment of an attempt, as it was recorded."""
        return self._read(files.environment_file(attempt), _parse_object, {}, _LARGEST_JSON)

    def environments(self) -> list[dict[str, Any]]:
        """Return the recorded environments, oldest first."""
        matches = [match for name in self.folder.files() if (match := _ENVIRONMENT.fullmatch(name))]
        attempts = sorted(int(match[1] or 1) for match in matches)
        return [found for attempt in attempts if (found := self.environment(attempt))]

    # Metrics

    def read_metrics(self) -> None:
        """Read ``metrics.jsonl`` to its end."""
        self.metrics.refresh(math.inf)

    def curves(self) -> dict[str, Curve]:
        """Return what was read of ``metrics.jsonl``, by name."""
        columns = self.metrics.columns
        steps = columns.head["step"].view.astype(np.int64)
        return {
            name: Curve(steps[columns.rows[name].view], values.view)
            for name, values in columns.values.items()
        }

    def last_row(self) -> dict[str, float]:
        """Return step, epoch, samples and time of the last row that was read."""
        head = self.metrics.columns.head
        last = {name: float(head[name].view[-1]) for name in HEAD if len(head[name])}
        return {name: value for name, value in last.items() if math.isfinite(value)}

    # What the run left behind

    def attempts(self) -> list[Attempt]:
        """Return the attempts in the ledger, oldest first."""
        return self._guard(files.LEDGER, self._read_ledger, [])

    def _read_ledger(self) -> list[Attempt]:
        with closing_descriptor(self.folder.open(files.LEDGER)) as file, self._ledger.lock:
            self._ledger.refresh(file)
        if invalid := self._ledger.invalid_lines:
            self._faults[files.LEDGER] = _invalid_lines(files.LEDGER, invalid)
        return [*self._ledger.attempts.values()]

    def checkpoints(self, *, verify: bool = False) -> list[CheckpointInfo]:
        """Return the checkpoints, newest first.

        Args:
            verify: read and check every byte, not only the sizes of the files.
        """
        self._faults.pop(files.CHECKPOINTS, None)
        if (self.folder.path / files.CHECKPOINTS).is_symlink():
            self._faults[files.CHECKPOINTS] = (
                f"{files.CHECKPOINTS} is a link, which is not followed"
            )
        found = list_checkpoints(self.folder)
        return [self.verify(one.name) for one in found] if verify else found

    def verify(self, checkpoint: str) -> CheckpointInfo:
        """Read and check every byte of a checkpoint.

        Raises:
            FileNotFoundError: there is no such checkpoint.
        """
        return check_every_byte(self.folder, checkpoint)

    def weights(self) -> Weights | None:
        """Return what the header of the final weights says, None if there are none."""
        return self._guard(files.WEIGHTS, self._read_weights, None)

    def _read_weights(self) -> Weights:
        with closing_descriptor(self.folder.open(files.WEIGHTS)) as file:
            size = os.fstat(file).st_size
            length = int.from_bytes(os.pread(file, 8, 0), "little")
            if not 0 < length <= size - 8:
                raise ValueError("its header is longer than the file")
            header = json.loads(os.pread(file, min(length, _LARGEST_HEADER), 8))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        count = sum(math.prod(int(side) for side in entry["shape"]) for entry in tensors)
        if not 0 <= count < 1e15:
            raise ValueError("its shapes are impossible")
        return Weights(count, len(tensors), sorted({str(one["dtype"]) for one in tensors}), size)

    def log(self, limit: int) -> tuple[list[str], bool]:
        """Return the lines in the last ``limit`` bytes of the log, and whether there are more."""
        data = self.folder.tail(files.LOG, limit)
        lines = data.decode(errors="replace").split("\n")
        is_cut = len(data) >= limit
        return lines[is_cut:], is_cut

    def status(self, config: dict[str, Any] | None = None) -> Status:
        """Return the state and the progress of the run, by the metrics read so far.

        Args:
            config: what `config` returned; read again if not given.
        """
        known = self.config() if config is None else config
        return status_of(self.folder, self.metrics.columns, known)

    def last_epoch(self) -> dict[str, float]:
        """Return the results of the last epoch in the log: means over all its samples."""
        return last_epoch(self.folder)

    def cost(self) -> dict[str, Any]:
        """Return the contents of ``cost.json``."""
        return self._read(files.COST, _parse_object, {}, _LARGEST_JSON)

    def media(self) -> list[dict[str, Any]]:
        """Return the logged images and texts, newest first; the last one of each name and step."""
        found: dict[tuple[str, int], dict[str, Any]] = {}
        for line in self.folder.tail(files.MEDIA_INDEX, _MEDIA_TAIL).split(b"\n"):
            row = _parse_media(line)
            if row is not None:
                found.pop((row["name"], row["step"]), None)
                found[row["name"], row["step"]] = row
        return list(reversed(found.values()))[:_MOST_MEDIA]

    def image(self, name: str) -> bytes | None:
        """Return a logged image, None if there is none of that name."""
        if not _IMAGE.fullmatch(name):
            return None
        data = self.folder.below(files.MEDIA).head(name, _LARGEST_IMAGE)
        return data if data.startswith(_PNG) else None

    def _read(self, name: str, parse: Callable[[bytes], T], default: T, limit: int) -> T:
        return self._guard(name, lambda: parse(self.folder.read(name, limit)), default)

    def _guard(self, name: str, read: Callable[[], T], default: T) -> T:
        """Return what ``read`` returns, or ``default`` and a fault if the file is broken."""
        self._faults.pop(name, None)
        try:
            return read()
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            self._faults[name] = f"{name} cannot be read: {error.strerror}"
        except Exception as error:  # parsers raise many kinds of errors for garbage
            message = str(error).partition("\n")[0][:200] or type(error).__name__
            self._faults[name] = f"{name} is broken: {message}"
        return default


def monitored_result(config: Mapping[str, Any]) -> tuple[str, Literal["min", "max"] | None]:
    """Return the result that decides which checkpoint is the best, and which value is better.

    Args:
        config: what `RunReader.config` returned; the name is empty if it has no such result.
    """
    hooks = (key.removesuffix(".best") for key in config if re.fullmatch(r"hooks\..+\.best", key))
    for place in ("run.checkpoint", *hooks):
        name, mode = config.get(f"{place}.best"), config.get(f"{place}.mode")
        if isinstance(name, str) and name:
            return name, mode if mode in ("min", "max") else None
    return "", None


def flat_values(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by dotted keys, as plain values; as many as a page can show."""
    return {key: plain_value(value) for key, value in flatten(tree, _MOST_KEYS).items()}


def _invalid_lines(name: str, count: int) -> str:
    return f"{name} has {count} line{'s' if count > 1 else ''} that cannot be read"


def _decode(data: bytes) -> str | None:
    return data.decode("utf-8", "replace")


def _parse_config(data: bytes) -> dict[str, Any]:
    tree = yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if tree is not None and not isinstance(tree, dict):
        raise ValueError(f"it holds a {type(tree).__name__}, expected keys and values")
    return tree or {}


def _parse_object(data: bytes) -> dict[str, Any]:
    found = parse_json(data)
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}, expected an object")
    return found


def _parse_media(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        return None
    step, when = row.get("step"), row.get("time")
    if type(step) is not int or not 0 <= step < 2**53:
        return None
    seconds = float(when) if isinstance(when, int | float) and math.isfinite(when) else None
    shown = {"name": row["name"][:200], "step": step, "time": seconds}
    if row.get("kind") == "image" and isinstance(row.get("file"), str):
        return shown | {"kind": "image", "file": row["file"][:200]}
    if row.get("kind") == "text" and isinstance(row.get("text"), str):
        return shown | {"kind": "text", "text": row["text"][:20000]}
    return None
