"""Provenance of a run: its configuration and its environment."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import xxhash

from stoker.checkpoint import Checkpoints
from stoker.config import Config, RunConfig, load
from stoker.config.yaml_text import write
from stoker.core import dist
from stoker.core.log import get_logger
from stoker.rundir import files
from stoker.rundir.config_tree import ABSENT, differences, flatten, format_value
from stoker.rundir.folder import RunFolder, resume_filter
from stoker.storage import local_path

_log = get_logger()

_PACKAGES = ("stoker", "torch", "numpy", "torchmetrics", "safetensors", "omegaconf")
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONHASHSEED", "SLURM_JOB_ID")
_LONGEST_DIFF = 1_000_000


def folder_for_config(config: Config, tree: Mapping[str, Any], run: RunConfig) -> RunFolder | None:
    """Return the folder for a config's run: ``runs/<name>``, or the newest one to resume in.

    A run is resumed only with the same config, apart from the keys in `MAY_CHANGE`. A run with
    another config gets a new folder.
    """
    if run.dir is None:
        return None
    base = local_path(run.dir, "run.dir") / (run.name or config.name)
    if run.resume in ("must", "never"):
        return RunFolder(base)
    path = dist.broadcast_from_rank0(str(_choose(base, tree, run)) if dist.is_main() else "")
    return RunFolder(path, exact=True)


def _choose(base: Path, tree: Mapping[str, Any], run: RunConfig) -> Path:
    resumable = [*filter(resume_filter(run.resume), RunFolder(base).runs())]
    for folder in reversed(resumable):
        changed = config_changes(folder, tree)
        if not changed:
            return folder
    free = RunFolder(base).first_free()
    if resumable:
        _log.info(
            f"{resumable[-1]} was made with another config ({'; '.join(changed[:3])}), so this run "
            f"goes to {free}; set run.resume=must to resume {base} anyway"
        )
    return free


MAY_CHANGE = {
    *("run.epochs", "run.max_steps", "run.progress", "run.resume", "run.grace", "run.name"),
    *("run.dir", "run.checkpoint", "run.threads", "run.log_every", "run.parallel"),
    *("run.dead_after", "run.hung_after"),
}
"""The parts of a config that may change when a run is resumed."""


def config_changes(run_dir: Path, tree: Mapping[str, Any]) -> list[str]:
    """Return how the config saved in a run folder differs from a resolved one."""
    saved = run_dir / files.CONFIG
    if not saved.is_file():  # killed before the first step, or started by a script
        started = Checkpoints(run_dir / files.CHECKPOINTS).newest() is not None
        return [f"it has no {files.CONFIG}"] if started else []
    then, now = flatten(load(saved).resolved()), flatten(tree)
    return [
        f"{key} was {format_value(old) or 'absent'} and is {format_value(new) or 'absent'}"
        for key, (old, new) in differences([then, now])
        if not _may_change(key) and not (old in _NOTHING and new in _NOTHING)
    ]


_NOTHING = (None, ABSENT)


def _may_change(key: str) -> bool:
    return ".".join(key.split(".")[:2]) in MAY_CHANGE


def config_digest(config: Config) -> str:
    """Return 16 digits that identify a config, apart from the keys in `MAY_CHANGE`."""
    tree = config.resolved()
    for path in MAY_CHANGE:
        tree["run"].pop(path.removeprefix("run."), None)
    return str(xxhash.xxh3_64_hexdigest(write(tree).encode()))


def environment() -> dict[str, Any]:
    """Return versions, hardware, git state and the command line."""
    return {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": sys.argv,
        "folder": str(Path.cwd()),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "system": {
            "host": platform.node(),
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "memory_gib": _memory_gib(),
            "accelerators": _accelerators(),
        },
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "git": git_state(),
    }


def git_state() -> dict[str, Any] | None:
    """Return the current commit and the diff against it, None outside a repository."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    diff = _git("diff", "HEAD") or ""
    return {
        "commit": commit.strip(),
        "dirty": bool((_git("status", "--porcelain") or "").strip()),
        "diff": diff if len(diff) <= _LONGEST_DIFF else diff[:_LONGEST_DIFF] + "\n… cut off\n",
    }


def _git(*arguments: str) -> str | None:
    if shutil.which("git") is None:
        return None
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, errors="replace", check=False
    )
    return done.stdout if done.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _memory_gib() -> float | None:
    try:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, AttributeError, OSError):  # Windows
        return None
    return round(pages / 2**30, 1)


def _accelerators() -> list[str]:
    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator()  # untested: no such device here
    return [f"{kind}:{index}" for index in range(torch.accelerator.device_count())]
