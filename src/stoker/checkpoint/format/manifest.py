"""MANIFEST.json: the step, info and files of a checkpoint, with their sizes and checksums.

The manifest is written last: a folder without it is not a checkpoint. It contains its own checksum
and has exactly one valid spelling, so that a change of any byte is detected.
"""

import json
import re
from dataclasses import asdict, dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

import xxhash

from stoker.checkpoint.format.names import FILE_NAME, MANIFEST, open_checkpoint
from stoker.checkpoint.format.state_tree import Json, flatten, unflatten
from stoker.checkpoint.format.tensor_file import DTYPES_BY_NAME
from stoker.checkpoint.format.validation import (
    LARGEST,
    check_count,
    check_dimensions,
    check_keys,
    reading,
)
from stoker.core.errors import CheckpointError
from stoker.storage import FileRecord, Storage

FORMAT = 1

_LARGEST = 1 << 28
"""The largest manifest, in bytes."""

_CHECKSUM = re.compile(r"[0-9a-f]{32}")


@dataclass(slots=True)
class Manifest:
    """The contents of MANIFEST.json.

    Args:
        step: the step of the checkpoint.
        info: values to read without loading the checkpoint: counters, metrics.
        world_size: the number of processes that wrote it.
        files: size and checksum of every other file.
        split: tensors that are stored in several pieces: dtype, shape, and where each piece is.
    """

    step: int
    info: dict[str, Any]
    world_size: int
    files: dict[str, FileRecord]
    split: dict[str, Json] = field(default_factory=dict)

    def text(self) -> str:
        """Return the contents of the file."""
        fields: Json = {
            "format": FORMAT,
            "step": self.step,
            "info": encode_info(self.info),
            "world_size": self.world_size,
            "files": {name: asdict(record) for name, record in sorted(self.files.items())},
            "split": self.split,
        }
        return _dump(fields | {"checksum": _checksum(fields)})

    @classmethod
    def read(cls, location: str | Path | Storage) -> "Manifest":
        """Read the manifest of a checkpoint.

        Raises:
            CheckpointError: it is missing, damaged, or of another format.
        """
        storage = open_checkpoint(location)
        what = f"{MANIFEST} in '{storage}'"
        with reading(what):
            size = storage.size(MANIFEST)
            if size is None:
                raise CheckpointError(f"'{storage}' is not a checkpoint: it has no {MANIFEST}")
            check_count(size, "its size in bytes", _LARGEST)
            text = storage.read(MANIFEST).decode()
            fields = json.loads(text)
            version = fields.pop("format")
            if version != FORMAT:
                raise CheckpointError(
                    f"'{storage}' has checkpoint format {str(version)[:60]}, this Stoker reads "
                    f"format {FORMAT}"
                )
            fields = {"format": version} | fields
            checksum = fields.pop("checksum", None)
            if checksum != _checksum(fields) or text != _dump(fields | {"checksum": checksum}):
                raise CheckpointError(f"{what} was changed after it was written")
            return cls._checked(fields)

    @classmethod
    def _checked(cls, fields: Json) -> "Manifest":
        """Return the manifest that fields describe, after checking each against the schema."""
        check_keys(fields, ("format", "step", "info", "world_size", "files", "split"), "it")
        info, files, split = unflatten({}, fields["info"]), fields["files"], fields["split"]
        if not all(isinstance(one, dict) for one in (info, files, split)):
            raise ValueError("info, files and split must be objects")
        manifest = cls(
            step=check_count(fields["step"], "step"),
            info=info,
            world_size=check_count(fields["world_size"], "world_size", 10**7),
            files={name: _check_file(name, record) for name, record in files.items()},
            split=split,
        )
        for key, table in split.items():
            _check_split(key, table, manifest.files)
        return manifest


def metrics_in(info: dict[str, Any]) -> dict[str, float]:
    """Return the numbers under "metrics" in an info, which may hold anything."""
    found = info.get("metrics")
    return {
        str(name): value
        for name, value in (found.items() if isinstance(found, dict) else ())
        if _is_number(value)
    }


def _is_number(value: Any) -> bool:
    return abs(value) < LARGEST if type(value) is int else isinstance(value, Real)


def _check_file(name: str, record: Any) -> FileRecord:
    if not FILE_NAME.fullmatch(name):
        raise ValueError(f"it lists '{name[:200]}', which is no file of a checkpoint")
    fields = check_keys(record, ("size", "xxh3_128"), f"the record of '{name}'")
    checksum = fields["xxh3_128"]
    if not isinstance(checksum, str) or not _CHECKSUM.fullmatch(checksum):
        raise ValueError(f"the checksum of '{name}' is invalid")
    return FileRecord(check_count(fields["size"], f"the size of '{name}'"), checksum)


def _check_split(key: str, table: Any, files: dict[str, FileRecord]) -> None:
    what = f"'{key[:200]}'"
    fields = check_keys(table, ("dtype", "shape", "pieces"), what)
    if fields["dtype"] not in DTYPES_BY_NAME:
        raise ValueError(f"{what} has an unknown dtype")
    shape = check_dimensions(fields["shape"], f"the shape of {what}")
    if not isinstance(fields["pieces"], list):
        raise ValueError(f"the pieces of {what} must be a list")
    for piece in fields["pieces"]:
        place = check_keys(piece, ("file", "name", "offset"), f"a piece of {what}")
        if place["file"] not in files or not isinstance(place["name"], str):
            raise ValueError(f"a piece of {what} is in a file that is not listed")
        if len(check_dimensions(place["offset"], f"an offset of {what}")) != len(shape):
            raise ValueError(f"a piece of {what} has an offset of another dimension")


def encode_info(info: dict[str, Any]) -> Json:
    """Return the info as JSON; tensors are rejected."""
    tensors, values = flatten(info)
    if tensors:
        raise TypeError(f"info → {next(iter(tensors))} is a tensor, expected plain values")
    return values


def _dump(fields: Json) -> str:
    return json.dumps(fields, indent=1) + "\n"


def _checksum(fields: Json) -> str:
    return xxhash.xxh3_128(_dump(fields).encode()).hexdigest()
