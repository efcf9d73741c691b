"""Small parts that scripts import from BigDL and Orca: errors, chunks, and local files."""

import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from stoker.storage import local_path


def invalidInputError(  # noqa: N802
    condition: bool,
    errMsg: str,  # noqa: N803
    fixMsg: str | None = None,  # noqa: N803
) -> None:
    """Raise a RuntimeError with these messages unless the condition holds."""
    if not condition:
        raise RuntimeError(errMsg if fixMsg is None else f"{errMsg} ({fixMsg})")


invalidOperationError = invalidInputError  # noqa: N816


def chunks(iterable: Iterable[Any], size: int = 10) -> Iterator[list[Any]]:
    """Yield the items in lists of ``size``; the last may be shorter."""
    items = iter(iterable)
    while chunk := list(islice(items, size)):
        yield chunk


class EveryEpoch:
    """A trigger of BigDL's own engine. With PyTorch, `ModelCheckpoint` says when to save."""


def is_local_path(path: str) -> bool:
    """Return whether a path is not the URL of another file system."""
    return "://" not in str(path) or str(path).startswith("file://")


def _local(path: str | Path) -> Path:
    return local_path(str(path).removeprefix("file://"))


def put_local_file_to_remote(local_path: str, remote_path: str, over_write: bool = False) -> None:
    """Copy a file or a folder, and replace existing files on request."""
    source, target = _local(local_path), _local(remote_path)
    if target.exists() and not over_write and not (target.is_dir() and not any(target.iterdir())):
        raise FileExistsError(f"'{remote_path}' exists: pass over_write=True to replace it")
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


def get_remote_file_to_local(remote_path: str, local_path: str, over_write: bool = False) -> None:
    """Copy a file or a folder, and replace existing files on request."""
    put_local_file_to_remote(remote_path, local_path, over_write)


def get_remote_dir_to_local(remote_dir: str, local_dir: str, over_write: bool = False) -> None:
    """Copy a folder, and replace existing files on request."""
    put_local_file_to_remote(remote_dir, local_dir, over_write)


put_local_dir_to_remote = put_local_dir_tree_to_remote = put_local_file_to_remote
