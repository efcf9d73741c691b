"""MANIFEST.json: the step, info and files of a checkpoint, with their sizes and checksums.

The manifest is written last: a folder without it is not a checkpoint. It contains its own checksum
and has exactly one valid spelling, so that a change of any byte is detected.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from stoker.checkpoint.format.names import MANIFEST
from stoker.checkpoint.format.state_tree import Json, flatten, unflatten
from stoker.core.errors import CheckpointError
from stoker.storage import FileRecord, Storage, open_storage

FORMAT = 1


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
        storage = open_storage(location)
        try:
            text = storage.read(MANIFEST).decode()
            fields = json.loads(text)
            version = fields.pop("format")
        except FileNotFoundError:
            raise CheckpointError(
                f"'{storage}' is not a checkpoint: it has no {MANIFEST}"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{MANIFEST} in '{storage}' cannot be read: {error}") from error
        if version != FORMAT:
            raise CheckpointError(
                f"'{storage}' has checkpoint format {version}, this Stoker reads format {FORMAT}"
            )
        fields = {"format": version} | fields
        checksum = fields.pop("checksum", None)
        if checksum != _checksum(fields) or text != _dump(fields | {"checksum": checksum}):
            raise CheckpointError(f"{MANIFEST} in '{storage}' was changed after it was written")
        return cls(
            step=fields["step"],
            info=unflatten({}, fields["info"]),
            world_size=fields["world_size"],
            files={name: FileRecord(**record) for name, record in fields["files"].items()},
            split=fields["split"],
        )


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
