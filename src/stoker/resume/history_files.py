"""The history of a long run in files of its own, so that a save does not write it all again.

A checkpoint holds the newest epochs, and names the files that hold the others. A file is written
once, before a checkpoint names it, and never changes: its name has the checksum of its content.
"""

import json
import re
from pathlib import Path
from typing import Any, TypeAlias

import xxhash

from stoker.core.log import get_logger
from stoker.events import History
from stoker.rundir import files
from stoker.storage import url_of, write_atomic

_log = get_logger()

Rows: TypeAlias = list[dict[str, float]]

_EPOCHS = 1000
"""The epochs of one file."""

_NAME = re.compile(r"(\d{8,15})-([0-9a-f]{32})\.jsonl", re.ASCII)


class HistoryFiles:
    """Encodes the history for the checkpoints of a run.

    Args:
        run_dir: the run folder; None keeps everything in the checkpoint.
    """

    def __init__(self, run_dir: Path | None = None) -> None:
        self._folder = run_dir / files.HISTORY if run_dir is not None else None
        self._names: list[str] = []
        self._last: dict[str, float] | None = None  # of the rows in files

    def save(self, history: History) -> dict[str, Any]:
        """Return what a checkpoint holds of the history; write files for what it does not."""
        written = len(self._names) * _EPOCHS
        if written and (len(history) < written or history[written - 1] is not self._last):
            self._names, written = [], 0  # the user has changed it
        while self._folder is not None and len(history) - written >= _EPOCHS:
            rows = history[written : written + _EPOCHS]
            self._names.append(_write(self._folder, written, _encode(rows)))
            self._last, written = rows[-1], written + _EPOCHS
        return {"files": [*self._names], "rows": _encode(history[written:])}


def read_history(saved: Any, checkpoint: Path) -> Rows:
    """Return the history of a checkpoint; warn if files of it are missing or damaged.

    Raises:
        ValueError: the checkpoint holds something else.
    """
    if isinstance(saved, list):  # imported from another trainer, or by an earlier version
        return saved
    if not isinstance(saved, dict) or not isinstance(saved.get("files"), list):
        raise ValueError("it has no history: another version of Stoker saved it")
    run_dir, rows = checkpoint.parent.parent, Rows()
    for name in saved["files"]:
        text = _read(run_dir, name)
        if text is None:
            rows.clear()
            _log.warning(
                f"resume: '{run_dir / files.HISTORY / name}' is missing or damaged, so the history "
                "that fit() returns lacks the first epochs: copy the folder along with the "
                "checkpoints; training is not affected"
            )
        else:
            rows += _decode(text)
    return rows + _decode(saved["rows"])


def _encode(rows: Rows) -> str:
    return "".join([json.dumps(row, default=float) + "\n" for row in rows])


def _decode(text: str) -> Rows:
    return [dict(json.loads(line)) for line in text.splitlines()]


def _write(folder: Path, first: int, text: str) -> str:
    name = f"{first + 1:08}-{xxhash.xxh3_128(text.encode()).hexdigest()}.jsonl"
    if not (folder / name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / name, text)
    return name


def _read(run_dir: Path, name: Any) -> str | None:
    """Return the content of a file, None if it is not there or not what its name says."""
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ValueError(f"{str(name)[:60]!r} is not the name of a file of the history")
    path, url = run_dir / files.HISTORY / name, url_of(run_dir)
    try:
        if url is not None and not path.exists():
            from stoker.storage.blobs import Blobs  # imports a client of stores

            data = Blobs(url).get(f"{files.HISTORY}/{name}")
        else:
            data = path.read_bytes()
    except OSError:
        return None
    return data.decode() if xxhash.xxh3_128(data).hexdigest() == match[2] else None
