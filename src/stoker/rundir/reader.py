"""`RunReader`: the one way to read a run folder, whatever state it is in."""

import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import yaml
from numpy.typing import NDArray

from stoker.rundir import files
from stoker.rundir.attempts import Attempt, parse_ledger
from stoker.rundir.checkpoint_info import CheckpointInfo, check_every_byte, list_checkpoints
from stoker.rundir.config_tree import flatten, plain_value
from stoker.rundir.metrics_index import HEAD, Floats, MetricsFile
from stoker.rundir.safe_folder import SafeFolder, closing_descriptor, parse_json
from stoker.rundir.status import Status, status_of

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
        attempts, invalid = parse_ledger(self.folder.lines(files.LEDGER))
        if invalid:
            self._faults[files.LEDGER] = _invalid_lines(files.LEDGER, invalid)
        return attempts

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
