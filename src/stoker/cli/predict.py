"""``stoker predict``: write the outputs of trained weights to a file."""

import argparse
import csv
import json
from pathlib import Path
from typing import Any

from stoker.cli.common import OK, add_config, add_weights, frozen_imports, output_path
from stoker.cli.output import emit
from stoker.core.errors import ConfigError
from stoker.storage import atomic_file

Arrays = dict[str, Any]
"""Numpy arrays by name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config(parser)
    add_weights(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="predictions.npz",
        help="A .npz, .jsonl or .csv file. Default: predictions.npz.",
    )


def run(options: argparse.Namespace) -> int:
    """Write the predictions and print their shapes."""
    path = output_path(options.output, "--output", tuple(_WRITERS))
    with frozen_imports():
        from stoker.cli.jobs import trained_job
    job, weights = trained_job(options)
    arrays = _arrays(job.predict())
    with atomic_file(path) as temporary:
        _WRITERS[path.suffix](temporary, arrays)
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    text = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    emit("predict", f"{path}: {text}", output=path, weights=weights, shapes=shapes)
    return OK


def _arrays(outputs: Any) -> Arrays:
    """Return outputs as arrays: those of a dict by key, a single one as "output"."""
    from torch import Tensor

    found: Arrays = {}

    def add(value: Any, name: str) -> None:
        if isinstance(value, Tensor):
            value = value.detach()
            found[name or "output"] = (
                value.float().numpy() if value.dtype.is_floating_point else value.numpy()
            )
        elif isinstance(value, dict):
            for key, item in value.items():
                add(item, f"{name}.{key}" if name else str(key))
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                add(item, f"{name}.{index}" if name else f"output.{index}")

    add(outputs, "")
    if not found:
        raise ConfigError("the model returned no tensors to write")
    return found


def _write_npz(path: Path, arrays: Arrays) -> None:
    import numpy as np

    with path.open("wb") as file:
        np.savez(file, **arrays)


def _write_jsonl(path: Path, arrays: Arrays) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in zip(*arrays.values(), strict=True):
            values = dict(zip(arrays, (item.tolist() for item in row), strict=True))
            file.write(json.dumps(values) + "\n")


def _write_csv(path: Path, arrays: Arrays) -> None:
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
