"""Find the checkpoint to resume from, and read what concerns this rank."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from stoker.checkpoint import CheckpointError, Checkpoints, Loaded
from stoker.checkpoint.format.manifest import Manifest
from stoker.core.errors import did_you_mean
from stoker.core.tree import is_sharded
from stoker.engine.engine import Engine, unwrap
from stoker.parallel import Layout
from stoker.rundir import files
from stoker.rundir.folder import RESUME_MODES, recorded_origin, resume_path
from stoker.storage import local_path

ShardingTemplate: TypeAlias = Callable[[str, tuple[int, ...]], Tensor | None]


def sharding_template(engine: Engine) -> ShardingTemplate:
    """Return a function from the name and shape of a saved tensor to a tensor sharded like it.

    A saved tensor belongs to a parameter if it has the parameter's shape and its name ends in the
    parameter's name, or names the parameter's state in an optimizer. This covers weights, averages
    of weights, and moments. The function returns None for a tensor that is not sharded.
    """
    named: dict[str, Any] = {
        name: parameter
        for name, parameter in unwrap(engine.model).named_parameters()
        if is_sharded(parameter)
    }
    for key, parameters in engine.indexed_parameters().items():
        for index, parameter in parameters.items():
            if is_sharded(parameter):
                named[f"engine.optimizers.{key}.state.{index}"] = parameter

    def template(name: str, shape: tuple[int, ...]) -> Tensor | None:
        parts = name.split(".")
        for begin in range(len(parts)):
            for end in (len(parts), len(parts) - 1):  # the last part may name a moment
                found = named.get(".".join(parts[begin:end]))
                if found is not None and tuple(found.shape) == shape:
                    return found  # type: ignore[no-any-return]
        return None

    return template


def find_checkpoint(resume: str | Path, checkpoints: Checkpoints | None) -> Path | None:
    """Return the checkpoint to resume from, None to start from scratch.

    Args:
        resume: "auto", "must", "never", or the path of a checkpoint, of a folder of checkpoints,
            or of a run.
        checkpoints: the checkpoints of the run folder, None if it has none.

    Raises:
        CheckpointError: no valid checkpoint was found where one is required.
    """
    if resume in RESUME_MODES:
        path = checkpoints.newest() if checkpoints is not None and resume != "never" else None
        if path is None and resume == "must":
            where = f"'{checkpoints.folder}'" if checkpoints is not None else "a run without one"
            raise CheckpointError(f"resume='must', but there is no complete checkpoint in {where}")
        return path
    if checkpoints is not None and recorded_origin(checkpoints) == resume_path(resume):
        return checkpoints.newest()  # an earlier attempt of this command got this far
    path = local_path(resume, "resume")
    if (path / "MANIFEST.json").is_file():
        return path
    for folder in (path, path / files.CHECKPOINTS):
        if (newest := Checkpoints(folder).newest()) is not None:
            return newest
    near = did_you_mean(str(resume), RESUME_MODES)
    raise CheckpointError(
        f"there is no complete checkpoint '{resume}'{near} (resume takes auto, must, never or a "
        "path)"
    )


def load_checkpoint(path: Path, engine: Engine) -> Loaded:
    """Read a checkpoint of a run, as far as it concerns this rank.

    If it was saved in another layout, the state of each rank is taken from rank 0.

    Raises:
        CheckpointError: it is damaged, or is not a checkpoint of a run.
    """
    info = Manifest.read(path).info if (path / "MANIFEST.json").is_file() else {}
    rank = 0 if was_saved_in_another_layout(info, engine) else None
    loaded = Checkpoints(path.parent).load(path, into=sharding_template(engine), rank=rank)
    if not isinstance(loaded.shared, dict) or not {"model", "engine", "run"} <= set(loaded.shared):
        raise CheckpointError(f"'{path}' is a checkpoint, but not of a run")
    for state in loaded.shared["hooks"].values():
        for key, value in state.items():
            if isinstance(value, Mapping) and all(isinstance(v, Tensor) for v in value.values()):
                state[key] = engine.local_weights(value)
    own = loaded.own or {}
    loaded.shared["hooks"] |= own.get("hooks", {})
    loaded.shared |= {part: own[part] for part in ("events", "step") if part in own}
    return loaded


def was_saved_in_another_layout(info: Mapping[str, Any], engine: Engine) -> bool:
    """Return whether a checkpoint was saved in another layout than the engine's."""
    saved = info.get("settings", {}).get("layout", str(Layout()))
    return bool(saved != str(engine.layout))
