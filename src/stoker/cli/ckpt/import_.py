"""``stoker ckpt import``: convert checkpoints of other trainers, or their weights alone."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.names import MANIFEST
from stoker.cli.ckpt.keras_file import read_keras
from stoker.cli.ckpt.saved_training import (
    SavedTraining,
    is_optimizer_state,
    is_scheduler_state,
    read_saved,
)
from stoker.cli.ckpt.unpickle import unpickle
from stoker.cli.ckpt.weights_file import checked_output, save_safetensors
from stoker.cli.common import OK
from stoker.cli.output import emit, note
from stoker.core.errors import CheckpointError, ConfigError, did_you_mean_path
from stoker.resume.imported import imported_state
from stoker.storage import format_size, local_path

_SINGLE = ("model.safetensors", "pytorch_model.bin")
_INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_TRAINER_STATE = "trainer_state.json"
_KERAS = (".keras", ".h5")


def import_(options: argparse.Namespace) -> int:
    """Read what another trainer saved, and write a checkpoint or a file of weights."""
    source = local_path(options.file)
    output = _checked_output(options)
    if not source.exists():
        raise ConfigError(f"there is no '{source}'{did_you_mean_path(source)}")
    saved = _read(source, options.trust)
    if output.suffix != ".safetensors":
        saved.use_trained()
    saved.clean()
    if output.suffix == ".safetensors":
        size = _write_weights(saved, output)
    else:
        saved.step = saved.step if options.step is None else options.step
        saved.epoch = saved.epoch if options.epoch is None else options.epoch
        saved.within_epoch = saved.within_epoch and options.epoch is None
        output, size = _write_checkpoint(saved, output)
    emit("import", _sentence(saved, output, size), **_fields(saved, output, size))
    if output.suffix != ".safetensors":
        note(
            f"next: trainer.fit(…, resume='{options.output}'), or\n"
            f"stoker train CFG run.resume={options.output}"
        )
    return OK


def _checked_output(options: argparse.Namespace) -> Path:
    """Return where to write to, checked before any work is done."""
    output = Path(local_path(options.output, "--output"))
    if output.suffix == ".safetensors":
        given = [n for n in ("step", "epoch") if getattr(options, n) is not None]
        if given:
            raise ConfigError(
                f"a .safetensors file has weights alone, so --{given[0]} has no effect: name a "
                "folder with -o to import a checkpoint"
            )
        return checked_output(options.output, (".safetensors",))
    if output.suffix or output.is_file():
        raise ConfigError(
            f"--output must be a folder, or end in .safetensors for the weights alone, got "
            f"'{options.output}'"
        )
    for name in ("step", "epoch"):
        if getattr(options, name) is not None and getattr(options, name) < 0:
            raise ConfigError(f"--{name} must be at least 0, got {getattr(options, name)}")
    if (output / MANIFEST).exists() or Checkpoints(output).list():
        raise ConfigError(f"'{output}' holds checkpoints already: name a new folder with -o")
    return output


def _write_weights(saved: SavedTraining, output: Path) -> int:
    save_safetensors(output, saved.weights)
    for text in saved.notes:
        print(text, file=sys.stderr)
    found = {"optimizer state": saved.optimizers, "scheduler state": saved.lr_schedulers}
    saved.left_out += [what for what, states in found.items() if states]
    return output.stat().st_size


def _write_checkpoint(saved: SavedTraining, folder: Path) -> tuple[Path, int]:
    for text in saved.notes:
        print(text, file=sys.stderr)
    if saved.within_epoch:
        print(
            "it was saved in the middle of an epoch, whose data starts again from its first batch",
            file=sys.stderr,
        )
    step = saved.step or 0
    shared, info = imported_state(
        saved.trainer,
        saved.weights,
        saved.optimizers,
        saved.lr_schedulers,
        saved.scaler,
        step=step,
        epoch=saved.epoch or 0,
    )
    try:
        with Checkpoints(folder, keep=None) as checkpoints:
            path = checkpoints.save(step, shared, None, info, wait=True)
    except TypeError as error:
        raise CheckpointError(f"it holds what a checkpoint cannot: {error}") from error
    return path, sum(one.stat().st_size for one in path.iterdir())


def _sentence(saved: SavedTraining, output: Path, size: int) -> list[str]:
    """Return what was imported and what was not."""
    numbers = sum(one.numel() for one in saved.weights.values())
    lines = [f"{output}: {len(saved.weights)} tensors, {numbers:,} numbers, {format_size(size)}"]
    if output.suffix != ".safetensors":
        states = [f"{len(one['state'])} parameters" for one in saved.optimizers]
        counts = [
            f"optimizer state of {' and '.join(states)}" if states else "no optimizer state",
            "LR scheduler" if saved.lr_schedulers else "no LR scheduler",
            f"step {saved.step}" if saved.step is not None else "step unknown (pass --step)",
            f"epoch {saved.epoch}" if saved.epoch is not None else "epoch unknown (pass --epoch)",
        ]
        lines.append(f"from {saved.trainer}: {', '.join(counts)}")
    if saved.left_out:
        lines.append(f"left out: {', '.join(saved.left_out)}")
    return lines


def _fields(saved: SavedTraining, output: Path, size: int) -> dict[str, Any]:
    return {
        "output": output,
        "trainer": saved.trainer,
        "tensors": len(saved.weights),
        "numbers": sum(one.numel() for one in saved.weights.values()),
        "size": size,
        "optimizers": len(saved.optimizers) if output.is_dir() else 0,
        "lr_schedulers": len(saved.lr_schedulers) if output.is_dir() else 0,
        "step": saved.step,
        "epoch": saved.epoch,
        "left_out": saved.left_out,
    }


# Files and folders


def _read(path: Path, trust: bool) -> SavedTraining:
    if path.is_dir():
        return _from_folder(path, trust)
    if path.suffix in _KERAS:
        return read_keras(path)
    if path.suffix == ".safetensors" or path.name in _INDEX:
        return SavedTraining("PyTorch", _weights_of_file(path, trust))
    return read_saved(unpickle(path, trust=trust), path)


def _from_folder(folder: Path, trust: bool) -> SavedTraining:
    """Read a folder of Hugging Face: weights, and what its Trainer saves with them."""
    if (folder / MANIFEST).exists():
        raise ConfigError(f"'{folder}' is a Stoker checkpoint: use stoker ckpt export")
    names = [name for name in (*_SINGLE, *_INDEX) if (folder / name).is_file()]
    if not names:
        saved_in = max(folder.glob("checkpoint-*"), key=lambda one: one.stat().st_mtime, default="")
        near = f"; did you mean '{saved_in}'?" if saved_in else ""
        raise ConfigError(
            f"'{folder}' contains no weights: expected one of {', '.join(_SINGLE + _INDEX)}{near}"
        )
    first = min(names, key=lambda name: not name.startswith("model."))
    saved = SavedTraining("Hugging Face", _weights_of_file(folder / first, trust))
    read = {*names, *_read_hf_states(saved, folder)}
    if (folder / _TRAINER_STATE).is_file():
        _read_trainer_state(saved, folder / _TRAINER_STATE)
        read.add(_TRAINER_STATE)
        others = sorted(one.name for one in folder.iterdir() if one.name not in read)
        saved.left_out += [f"'{name}'" for name in others if not name.startswith("model-")]
    return saved


def _read_hf_states(saved: SavedTraining, folder: Path) -> set[str]:
    """Take the states of optimizer, scheduler and scaler; return the files that were read."""
    read = set()
    for name, is_state, states in (
        ("optimizer.pt", is_optimizer_state, saved.optimizers),
        ("scheduler.pt", is_scheduler_state, saved.lr_schedulers),
    ):
        if (folder / name).is_file():
            state = unpickle(folder / name, trust=False)
            if is_state(state):
                states.append(state)
                read.add(name)
    if (folder / "scaler.pt").is_file():
        saved.scaler = unpickle(folder / "scaler.pt", trust=False)
        read.add("scaler.pt")
    return read


def _read_trainer_state(saved: SavedTraining, path: Path) -> None:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        saved.step, epoch = int(state["global_step"]), float(state["epoch"] or 0)
        saved.epoch = int(epoch + 1e-6)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"'{path}' is not the state of a Hugging Face Trainer: {error}") from None
    saved.within_epoch = abs(epoch - round(epoch)) > 1e-6


def _weights_of_file(path: Path, trust: bool) -> dict[str, Any]:
    if path.name in _INDEX:
        return _from_shards(path, trust)
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return dict(load_file(path))
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"'{path}' cannot be read: {error}") from error
    return read_saved(unpickle(path, trust=trust), path).weights


def _from_shards(index: Path, trust: bool) -> dict[str, Any]:
    try:
        table = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names: set[str] = set(table.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"'{index}' is not an index of weights: {error}") from error
    weights: dict[str, Any] = {}
    for name in sorted(names):
        shard = index.parent / name
        if Path(name).name != name or not shard.is_file():
            raise ConfigError(f"'{index}' lists '{name}', which is not a file in the same folder")
        weights |= _weights_of_file(shard, trust)
    missing = [name for name in table if name not in weights]
    if missing:
        raise ConfigError(
            f"'{index}' lists {len(missing)} weights that no shard contains, such as '{missing[0]}'"
        )
    return weights
