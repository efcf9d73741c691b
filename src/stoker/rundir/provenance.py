"""What a run was made from: ``config.yaml`` and ``env.json`` in its folder."""

import json
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
from stoker.config.yaml_text import plain, write
from stoker.core import dist
from stoker.core.log import get_logger
from stoker.rundir.folder import RunFolder, may_continue_with
from stoker.storage import local_path

_log = get_logger()

_PACKAGES = ("stoker", "torch", "numpy", "torchmetrics", "safetensors", "omegaconf")
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONHASHSEED", "SLURM_JOB_ID")
_LONGEST_DIFF = 1_000_000


def folder_for(config: Config, tree: Mapping[str, Any], run: RunConfig) -> RunFolder | None:
    """Where a config's run goes: ``runs/<name>``, or the newest folder of that name to go on in.

    A run goes on only if its config is the same but for how long it is and what is said of it;
    with another config it is another run and goes beside it.
    """
    if run.dir is None:
        return None
    if run.resume in ("must", "never"):
        return RunFolder(_wanted(config, run))
    path = dist.broadcast_from_rank0(str(_folder(config, tree, run)) if dist.is_main() else "")
    return RunFolder(path, settled=True)


def _wanted(config: Config, run: RunConfig) -> Path:
    assert run.dir is not None
    return local_path(run.dir, "run.dir") / (run.name or config.name)


def _folder(config: Config, tree: Mapping[str, Any], run: RunConfig) -> Path:
    wanted = _wanted(config, run)
    old = [*filter(may_continue_with(run.resume), RunFolder(wanted).runs())]
    for folder in reversed(old):
        changed = changes(folder / "config.yaml", tree)
        if not changed:
            return folder
    free = RunFolder(wanted).first_free()
    if old:
        _log.info(
            f"{old[-1]} was made with another config ({'; '.join(changed[:3])}), so this run goes "
            f"to {free}; run.resume=must would go on with {wanted}"
        )
    return free


_MAY_CHANGE = {
    *("run.epochs", "run.max_steps", "run.progress", "run.resume", "run.grace", "run.name"),
    *("run.dir", "run.checkpoint", "run.threads", "run.log_every", "run.parallel"),
    *("run.dead_after", "run.hung_after"),
}


def changes(saved: Path, tree: Mapping[str, Any]) -> list[str]:
    """What of a saved config is different now, but for what may change within a run."""
    if not saved.is_file():  # killed before it began, or made by a script
        begun = Checkpoints(saved.parent / "checkpoints").newest() is not None
        return ["it has no config.yaml"] if begun else []
    then = load(saved).resolved()

    def differing(one: Any, other: Any, path: str) -> list[str]:
        if path in _MAY_CHANGE or one == other:
            return []
        same_target = getattr(one, "target", None) == getattr(other, "target", None)
        if isinstance(one, dict) and isinstance(other, dict) and same_target:
            keys = dict.fromkeys([*one, *other])
            below = [(key, f"{path}.{key}" if path else str(key)) for key in keys]
            found = [d for k, at in below for d in differing(one.get(k), other.get(k), at)]
            args = getattr(one, "args", None), getattr(other, "args", None)
            return found if args[0] == args[1] else [*found, f"{path} was {one!r} and is {other!r}"]
        return [f"{path} was {one!r} and is {other!r}"]

    return differing(then, tree, "")


def digest_of(config: Config) -> str:
    """16 digits that stand for a config, but for what may change within a run."""
    tree = config.resolved()
    for path in _MAY_CHANGE:
        tree["run"].pop(path.removeprefix("run."), None)
    text = json.dumps(plain(write(tree)), sort_keys=True, default=str)
    return str(xxhash.xxh3_64_hexdigest(text.encode()))


def environment() -> dict[str, Any]:
    """Versions, hardware, the state of the code, and the command."""
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
    """The commit one stands on, and what differs from it; None outside a repository."""
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
