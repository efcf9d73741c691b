"""Files of scripts: local ones. A URL of another file system is rejected."""

import os
import shutil
from pathlib import Path

from stoker.storage import local_path

__all__ = [
    "exists", "get_remote_dir_to_local", "get_remote_file_to_local", "is_file", "is_local_path",
    "listdir", "makedirs", "put_local_dir_to_remote", "put_local_dir_tree_to_remote",
    "put_local_file_to_remote", "rmdir",
]  # fmt: skip


def is_local_path(path: str) -> bool:
    """Return whether a path is not the URL of another file system."""
    return "://" not in str(path) or str(path).startswith("file://")


def _local(path: str | Path) -> Path:
    return local_path(str(path).removeprefix("file://"))


def exists(path: str) -> bool:
    """Return whether there is a file or folder."""
    return _local(path).exists()


def is_file(path: str) -> bool:
    """Return whether there is a file."""
    return _local(path).is_file()


def listdir(path: str) -> list[str]:
    """Return the paths in a folder."""
    return sorted(os.path.join(path, name) for name in os.listdir(_local(path)))


def makedirs(path: str) -> None:
    """Make a folder and its parents."""
    _local(path).mkdir(parents=True, exist_ok=True)


def rmdir(path: str) -> None:
    """Remove a file, or a folder and what it holds."""
    found = _local(path)
    found.unlink() if found.is_file() or found.is_symlink() else shutil.rmtree(found)


def put_local_file_to_remote(local_path: str, remote_path: str, over_write: bool = False) -> None:
    """Copy a file, and replace an existing one if told to."""
    target = _local(remote_path)
    if target.exists() and not over_write:
        raise FileExistsError(f"'{remote_path}' exists: pass over_write=True to replace it")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(_local(local_path), target)


def put_local_dir_to_remote(local_dir: str, remote_dir: str) -> None:
    """Copy a folder."""
    shutil.copytree(_local(local_dir), _local(remote_dir), dirs_exist_ok=True)


def put_local_dir_tree_to_remote(local_dir: str, remote_dir: str, over_write: bool = False) -> None:
    """Copy a folder, and replace existing files if told to."""
    if not over_write and _local(remote_dir).is_dir() and any(_local(remote_dir).iterdir()):
        raise FileExistsError(f"'{remote_dir}' is not empty: pass over_write=True to replace files")
    put_local_dir_to_remote(local_dir, remote_dir)


def get_remote_file_to_local(remote_path: str, local_path: str, over_write: bool = False) -> None:
    """Copy a file, and replace an existing one if told to."""
    put_local_file_to_remote(remote_path, local_path, over_write)


def get_remote_dir_to_local(remote_dir: str, local_dir: str, over_write: bool = False) -> None:
    """Copy a folder, and replace existing files if told to."""
    put_local_dir_tree_to_remote(remote_dir, local_dir, over_write)
