"""``stoker train``, ``evaluate`` and ``predict``."""

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from stoker.build import Job, assembled
from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.names import step_in_name
from stoker.cli.exit_codes import INTERRUPTED, OK
from stoker.cli.launching import in_processes, wants_processes
from stoker.cli.main import modules_that_stay
from stoker.config import ConfigError, load
from stoker.core import dist
from stoker.core.errors import CheckpointError
from stoker.core.tree import map_tensors
from stoker.resume.weights import load_weights
from stoker.rundir import files
from stoker.rundir.folder import RunFolder
from stoker.storage import atomic_file, local_path


def train(options: argparse.Namespace) -> int:
    """Train what a config describes."""
    if options.resume is not None:
        options.overrides.append(f"run.resume={options.resume}")
        options.resume = None
    if wants_processes(options):
        return in_processes(train, options)
    if options.eval_only:
        return evaluate(options)
    job = made(options)
    history = job.fit(fast_dev_run=options.fast_dev_run)
    trainer = job.trainer
    code = INTERRUPTED if "Ctrl-C" in (history.stop_reason or "") else OK
    if not dist.is_main():
        return code
    if options.fast_dev_run:
        print("one batch of everything went well; nothing was written")
        return OK
    if trainer.run.dir is not None and trainer.run.dir.exists():
        print(f"the run is in {trainer.run.dir}")
        print(
            f"next: stoker evaluate {options.config}, or change a value: "
            f"stoker train {options.config} optimizer.lr=…"
        )
    return code


def evaluate(options: argparse.Namespace) -> int:
    """Print the results of trained weights."""
    if wants_processes(options):
        return in_processes(evaluate, options)
    for name, value in _trained(options).evaluate().items():
        if dist.is_main():
            print(f"{name} {value:.6g}")
    return OK


def predict(options: argparse.Namespace) -> int:
    """Write what trained weights make of data."""
    path = local_path(options.output, "--output")
    if path.suffix not in _WRITERS:
        raise ConfigError(
            f"predictions are written to .npz, .jsonl or .csv, got '{options.output}'"
        )
    outputs = _trained(options).predict()
    arrays = _arrays(outputs)
    with atomic_file(path) as temporary:
        _WRITERS[path.suffix](temporary, arrays)
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
    print(f"{path}: {shapes}")
    return OK


def made(options: argparse.Namespace, *, training: bool = True) -> Job:
    """The job of the config that was named, as the overrides change it."""
    config = load(options.config, options.overrides, allow=options.allow)
    with modules_that_stay():
        config.check()  # imports what it names
    return assembled(config, training=training)


def _trained(options: argparse.Namespace) -> Job:
    job = made(options, training=False)
    path = _weights(options, job)
    try:
        faults = load_weights(job.trainer.engine.model, path, log=False)
    except CheckpointError as error:
        raise ConfigError(f"'{path}' does not hold weights of this model: {error}") from error
    said = [f"{what}: {', '.join(names)}" for what, names in faults.items() if names]
    if said:
        raise ConfigError(f"'{path}' does not hold weights of this model: {'; '.join(said)}")
    if dist.is_main():
        print(f"weights of {path}", file=sys.stderr)
    return job


def _weights(options: argparse.Namespace, job: Job) -> Path:
    """The file that was named, or the newest of the run: its last weights, or a checkpoint."""
    if options.weights:
        path = local_path(options.weights, "--weights")
        if not path.is_file():
            raise ConfigError(f"there is no file '{path}'")
        return path
    folders = [Path(options.config)] if Path(options.config).is_dir() else []
    if not folders and job.run.dir is not None:
        folders = RunFolder(Path(job.run.dir) / (job.run.name or job.config.name)).runs()
    for folder in reversed(folders):
        last = folder / files.WEIGHTS
        newest = Checkpoints(folder / files.CHECKPOINTS).newest()
        if last.is_file() and (newest is None or _step_of(last) >= _step_of(newest)):
            return last
        if newest is not None:
            return newest
    where = f"'{folders[-1]}'" if folders else f"'{job.run.dir}'"
    raise ConfigError(
        f"there are no weights in {where}: train first (stoker train {options.config}), or give "
        "--weights FILE"
    )


def _step_of(path: Path) -> int:
    """The step that weights or a checkpoint are of."""
    if path.is_dir():
        return step_in_name(path.name) or 0
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return int((file.metadata() or {}).get("step", 0))


def _arrays(outputs: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Outputs as arrays by name: those of a dict by its keys, one alone as "output"."""
    found: dict[str, np.ndarray[Any, Any]] = {}

    def add(value: Any, name: str) -> None:
        if isinstance(value, Tensor):
            found[name or "output"] = (
                value.float().numpy() if value.dtype.is_floating_point else value.numpy()
            )
        elif isinstance(value, dict):
            for key, item in value.items():
                add(item, f"{name}.{key}" if name else str(key))
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                add(item, f"{name}.{index}" if name else f"output.{index}")

    add(map_tensors(lambda tensor: tensor.detach(), outputs), "")
    if not found:
        raise ConfigError("the model returned no tensors to write")
    return found


def _write_npz(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _write_jsonl(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in zip(*arrays.values(), strict=True):
            values = dict(zip(arrays, (item.tolist() for item in row), strict=True))
            file.write(json.dumps(values) + "\n")


def _write_csv(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    flat = {name: array.reshape(len(array), -1) for name, array in arrays.items()}
    header = [
        name if array.shape[1] == 1 else f"{name}.{column}"
        for name, array in flat.items()
        for column in range(array.shape[1])
    ]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for row in zip(*flat.values(), strict=True):
            writer.writerow([value for part in row for value in part.tolist()])


_WRITERS = {".npz": _write_npz, ".jsonl": _write_jsonl, ".csv": _write_csv}
