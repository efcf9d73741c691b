"""MANIFEST.json: what a checkpoint is, what is in it, and how to see that all of it is there.

It is written last. A folder without it is no checkpoint; a folder with it can be checked to the
last byte, the manifest included: it holds its own checksum and has only one spelling.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from stoker.checkpoint.format.state_tree import Json, flatten, unflatten
from stoker.core.errors import CheckpointError
from stoker.storage.local import Record, checksum_of

NAME = "MANIFEST.json"
FORMAT = 1


@dataclass(slots=True)
class Manifest:
    """The contents of MANIFEST.json.

    Args:
        step: the step the checkpoint was made at.
        info: what the caller wants to know without loading: counters, metrics.
        world_size: how many processes wrote it.
        files: size and checksum of every file beside the manifest.
        split: the tensors that stand in several pieces, and where.
    """

    step: int
    info: dict[str, Any]
    world_size: int
    files: dict[str, Record]
    split: dict[str, Json] = field(default_factory=dict)

    def text(self) -> str:
        """The file."""
        fields: Json = {
            "format": FORMAT,
            "step": self.step,
            "info": encode_info(self.info),
            "world_size": self.world_size,
            "files": {name: asdict(record) for name, record in sorted(self.files.items())},
            "split": self.split,
        }
        return _spell(fields | {"checksum": _sum(fields)})

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest of a checkpoint; a `CheckpointError` says what is wrong with it."""
        try:
            text = (folder / NAME).read_text(encoding="utf-8")
            fields = json.loads(text)
            version = fields.pop("format")
        except FileNotFoundError:
            raise CheckpointError(f"'{folder}' is no checkpoint: it has no {NAME}") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{NAME} in '{folder}' is unreadable: {error}") from error
        if version != FORMAT:
            raise CheckpointError(
                f"'{folder}' has checkpoint format {version}, this Stoker reads format {FORMAT}"
            )
        fields = {"format": version} | fields
        checksum = fields.pop("checksum", None)
        if checksum != _sum(fields) or text != _spell(fields | {"checksum": checksum}):
            raise CheckpointError(f"{NAME} in '{folder}' is not as it was written")
        return cls(
            step=fields["step"],
            info=unflatten({}, fields["info"]),
            world_size=fields["world_size"],
            files={name: Record(**record) for name, record in fields["files"].items()},
            split=fields["split"],
        )


def encode_info(info: dict[str, Any]) -> Json:
    """The info as JSON; it takes no tensors."""
    tensors, values = flatten(info)
    if tensors:
        raise TypeError(f"info → {next(iter(tensors))} is a tensor, expected plain values")
    return values


def faults_of(folder: Path) -> list[str]:
    """What is wrong with a checkpoint, a sentence each; files it does not name are not looked at.

    Every byte is read again, from the disk where the system can forget what it has in memory.
    """
    try:
        manifest = Manifest.read(folder)
    except CheckpointError as error:
        return [str(error)]
    faults = [_fault(folder / name, record) for name, record in manifest.files.items()]
    return [fault for fault in faults if fault]


def faults_at_a_glance(path: Path) -> list[str]:
    """What the manifest and the sizes of the files tell to be wrong; no file is read through."""
    try:
        manifest = Manifest.read(path)
    except CheckpointError as error:
        return [str(error)]
    faults = []
    for name, record in manifest.files.items():
        file = path / name
        if not file.is_file():
            faults.append(f"'{name}' is missing")
        elif (size := file.stat().st_size) != record.size:
            faults.append(f"'{name}' has {size} bytes, expected {record.size}")
    return faults


def _fault(path: Path, record: Record) -> str:
    try:
        size = path.stat().st_size
        if size != record.size:
            return f"'{path.name}' has {size} bytes, expected {record.size}"
        found = checksum_of(path)
    except FileNotFoundError:
        return f"'{path.name}' is missing"
    except OSError as error:
        return f"'{path.name}' cannot be read: {error.strerror}"
    if found != record.xxh3_128:
        return f"'{path.name}' has checksum {found}, expected {record.xxh3_128}"
    return ""


def _spell(fields: Json) -> str:
    return json.dumps(fields, indent=1) + "\n"


def _sum(fields: Json) -> str:
    return xxhash.xxh3_128(_spell(fields).encode()).hexdigest()
