"""Checkpoints of runs: finding one, reading it as far as it concerns this process, its weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from stoker.checkpoint import CheckpointError, Checkpoints, Loaded
from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.read.load import read_weights
from stoker.core.errors import did_you_mean
from stoker.core.log import get_logger
from stoker.engine import Engine, bare
from stoker.engine.sharding_template import pattern_of
from stoker.parallel import Layout, is_elsewhere, placed
from stoker.rundir.folder import RESUME_WORDS, came_from, origin_of

_log = get_logger()


def find_checkpoint(resume: str | Path, checkpoints: Checkpoints | None) -> Path | None:
    """The checkpoint to go on from, None to begin anew.

    Args:
        resume: "auto", "must", "never", or a path: of a checkpoint, of a folder of them, or of a
            run.
        checkpoints: those of the run folder, None if it keeps none.

    Raises:
        CheckpointError: there must be one, and there is none that is whole.
    """
    if resume in RESUME_WORDS:
        path = checkpoints.newest() if checkpoints is not None and resume != "never" else None
        if path is None and resume == "must":
            where = f"'{checkpoints.folder}'" if checkpoints is not None else "a run without one"
            raise CheckpointError(f"resume='must', but there is no whole checkpoint in {where}")
        return path
    if checkpoints is not None and came_from(checkpoints) == origin_of(resume):
        return checkpoints.newest()  # an earlier attempt has got this far
    path = Path(resume)
    if (path / "MANIFEST.json").is_file():
        return path
    for folder in (path, path / "checkpoints"):
        if (newest := Checkpoints(folder).newest()) is not None:
            return newest
    near = did_you_mean(str(resume), RESUME_WORDS)
    raise CheckpointError(
        f"there is no whole checkpoint '{resume}'{near} (resume takes auto, must, never or a path)"
    )


def load_checkpoint(path: Path, engine: Engine) -> Loaded:
    """Read a checkpoint of a run, as far as it concerns this process.

    If it was made by processes that were arranged otherwise, what belongs to a process alone is
    taken from the first of them.

    Raises:
        CheckpointError: it is damaged, or holds something else.
    """
    info = Manifest.read(path).info if (path / "MANIFEST.json").is_file() else {}
    rank = 0 if was_arranged_otherwise(info, engine) else None
    loaded = Checkpoints(path.parent).load(path, into=pattern_of(engine), rank=rank)
    if not isinstance(loaded.shared, dict) or not {"model", "engine", "run"} <= set(loaded.shared):
        raise CheckpointError(f"'{path}' is a checkpoint, but not of a run")
    for state in loaded.shared["hooks"].values():
        for key, value in state.items():
            if isinstance(value, Mapping) and all(isinstance(v, Tensor) for v in value.values()):
                state[key] = engine.own(value)
    own = loaded.own or {}
    loaded.shared["hooks"] |= own.get("hooks", {})
    loaded.shared |= {part: own[part] for part in ("events", "step_owner") if part in own}
    return loaded


def was_arranged_otherwise(info: Mapping[str, Any], engine: Engine) -> bool:
    """Whether a checkpoint was made by processes in another layout than this one."""
    then = info.get("settings", {}).get("layout", str(Layout()))
    return bool(then != str(engine.layout))


def is_beyond(saved: Loaded, epochs: int | None, steps: int | None) -> bool:
    """Whether a state is within an epoch that a fit of these limits does not reach."""
    run = saved.shared["run"]
    if run["stage"] != "within" or run["limits"] == [epochs, steps]:
        return False
    return bool(
        (epochs is not None and run["epoch"] >= epochs)
        or (steps is not None and run["step"] > steps)
    )


def load_weights(model: nn.Module, path: str | Path) -> dict[str, list[str]]:
    """Load weights alone, as far as they fit, and tell what did not.

    Args:
        model: is given the weights of the same names and shapes.
        path: a ``.safetensors`` file, a checkpoint, or a folder or run with checkpoints in it.

    Returns:
        The names that are "missing", "unexpected" and "of another shape".
    """
    faults = put_weights(model, path)
    for what, names in faults.items():
        if names:
            _log.warning(f"weights of {path}, {what}: {', '.join(names)}")
    return faults


def put_weights(model: nn.Module, path: str | Path) -> dict[str, list[str]]:
    """The same, and nothing is logged."""
    saved = _weights_in(Path(path))
    own = bare(model).state_dict()
    here = {name: tensor for name, tensor in saved.items() if not is_elsewhere(bare(model), name)}
    faults = key_faults(own, here)
    fitting = {name: t for name, t in here.items() if name in own and t.shape == own[name].shape}
    bare(model).load_state_dict({n: placed(t, own[n]) for n, t in fitting.items()}, strict=False)
    return faults


def _weights_in(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        return read_weights(find_checkpoint(path, None) or path)
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CheckpointError(
            f"'{path}' is no safetensors file ({error}): 'stoker ckpt import' makes one of weights "
            "from elsewhere"
        ) from error


def key_faults(own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """How saved weights differ from a model's: missing, unexpected, and of another shape."""
    return {
        "missing": [name for name in own if name not in saved],
        "unexpected": [name for name in saved if name not in own],
        "of another shape": [
            f"{name} {list(saved[name].shape)} instead of {list(own[name].shape)}"
            for name in own
            if name in saved and saved[name].shape != own[name].shape
        ],
    }
