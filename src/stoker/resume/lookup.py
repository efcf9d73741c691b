"""Find the checkpoint to resume from, and read what concerns this rank."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from stoker.checkpoint import CheckpointError, Checkpoints, Loaded
from stoker.checkpoint.format.names import is_here, step_in_name, stored_copy
from stoker.checkpoint.format.validation import cause
from stoker.checkpoint.read.load import CheckpointReader, verify_checkpoint
from stoker.core import dist
from stoker.core.errors import CheckpointMismatchError, did_you_mean, did_you_mean_path
from stoker.core.log import get_logger
from stoker.engine.engine import Engine, unwrap
from stoker.parallel import Layout, local_weights
from stoker.resume.history_files import read_history
from stoker.resume.imported import fit_imported, is_imported
from stoker.resume.trained_memory import (
    outline,
    sharding_template,
    trained_keys,
    trained_memory,
)
from stoker.rundir import files
from stoker.rundir.folder import RESUME_MODES, recorded_origin, resume_path
from stoker.storage import open_storage, url_of
from stoker.storage.mirror import located

_log = get_logger()

_OTHER_NAMES = {
    **dict.fromkeys(("latest", "last", "newest", "true", "yes", "on", "1"), "auto"),
    **dict.fromkeys(("false", "no", "off", "none", "null", "0"), "never"),
    **dict.fromkeys(("force", "always", "required"), "must"),
}


def find_checkpoint(resume: str | Path, checkpoints: Checkpoints | None) -> Path | None:
    """Return the newest valid checkpoint to resume from, None to start from scratch.

    See `find_candidates` for the arguments and errors.
    """
    return first_readable(find_candidates(resume, checkpoints), lambda path: path)


def find_candidates(resume: str | Path, checkpoints: Checkpoints | None) -> list[Path]:
    """Return the checkpoints to resume from, newest first; none to start from scratch.

    Args:
        resume: "auto", "must", "never", or the path of a checkpoint, of a folder of checkpoints,
            or of a run.
        checkpoints: the checkpoints of the run folder, None if it has none.

    Raises:
        CheckpointError: there is no checkpoint where one is required.
    """
    if resume in RESUME_MODES:
        found = _newest_first(checkpoints) if checkpoints and resume != "never" else []
        if not found and resume == "must":
            where = f"'{checkpoints.folder}'" if checkpoints is not None else "a run without one"
            raise CheckpointError(f"resume='must', but there is no complete checkpoint in {where}")
        return found
    if checkpoints is not None and recorded_origin(checkpoints) == resume_path(resume):
        return _newest_first(checkpoints)  # an earlier attempt of this command got this far
    path = located(resume, "resume")
    if is_here(path) or (url_of(path) is not None and step_in_name(path.name) is not None):
        # A link of any other name was made by a user; checkpoints of a run are no links.
        return [path if step_in_name(path.name) is not None else path.resolve()]
    for folder in (path, path / files.CHECKPOINTS):
        if found := _newest_first(Checkpoints(folder)):
            return found
    near = did_you_mean(_OTHER_NAMES.get(str(resume).lower(), str(resume)), RESUME_MODES)
    raise CheckpointError(
        f"there is no complete checkpoint '{resume}'{near or _found(path)} (resume takes auto, "
        "must, never or a path)"
    )


def _found(path: Path) -> str:
    """Return what a path that is no checkpoint is, as a part of a message."""
    if path.is_file():
        return ", it is a file: 'stoker ckpt import' converts those of other trainers"
    if path.is_dir():
        return ", the folder has none"
    return did_you_mean_path(path)


def _newest_first(checkpoints: Checkpoints) -> list[Path]:
    """Return the checkpoints that rank 0 sees, by their paths on this node."""
    names: list[str] = dist.decide_on_rank0(
        lambda: [path.name for path in reversed(checkpoints.list())], []
    )
    return [checkpoints.folder / name for name in names]


T = TypeVar("T")


def first_readable(paths: Sequence[Path], read: Callable[[Path], T]) -> T | None:
    """Return what ``read`` returns for the first checkpoint that all ranks can read.

    Why a checkpoint is skipped is logged. All ranks must call it with the same paths.

    Args:
        paths: the checkpoints, in order of preference; None is returned if there are none.
        read: reads one; it may raise anything.

    Raises:
        CheckpointMismatchError: a checkpoint belongs to another model or run.
        CheckpointError: none of them can be read; the message names the fault of each.
    """
    faults, first_error = [], None
    for path in paths:
        result, error = _attempt(path, read)
        fault = _agree_on_fault(error)
        if fault is None:
            return result
        first_error = first_error or error
        faults.append(f"{path.name}: {fault}")
        if len(paths) > 1:
            _log.warning(f"skipped checkpoint '{path}': {fault}")
    if len(faults) == 1:
        raise CheckpointError(f"checkpoint '{paths[0]}' is damaged: {fault}") from first_error
    if faults:
        raise CheckpointError(
            f"none of the {len(faults)} checkpoints in '{paths[0].parent}' can be read "
            f"({'; '.join(faults)}): restore one from a copy, or start from scratch with "
            "resume='never'"
        ) from first_error
    return None


def _attempt(path: Path, read: Callable[[Path], T]) -> tuple[T | None, Exception | None]:
    """Verify a checkpoint on rank 0 and read it; return the result or the error."""
    faults: list[str] = dist.decide_on_rank0(partial(_verify, path), [])
    if faults:
        return None, CheckpointError("; ".join(faults))
    try:
        return read(path), None
    except Exception as error:  # whatever it is, an older checkpoint may be readable
        return None, error


def _verify(path: Path) -> list[str]:
    """Verify a checkpoint; if it is damaged and the store has a complete copy, use that."""
    faults = verify_checkpoint(path)
    stored = stored_copy(path) if faults and is_here(path) else None
    if stored is None or verify_checkpoint(stored):
        return faults
    _log.warning(f"'{path}' is damaged: {'; '.join(faults)}; the copy in '{stored}' is used")
    open_storage(path.parent).delete(path.name)
    return []


def _agree_on_fault(error: Exception | None) -> str | None:
    """Return the fault of the first rank that has one; raise one that no checkpoint can mend."""
    is_fatal = isinstance(error, CheckpointMismatchError)
    for rank, found in enumerate(dist.all_gather_object(error and (is_fatal, cause(error)))):
        if found is None:
            continue
        if is_fatal and error is not None:
            raise error
        if found[0]:
            raise CheckpointMismatchError(f"rank {rank} failed: {found[1]}")
        return f"rank {rank}: {found[1]}" if rank else found[1]
    return None


def load_checkpoint(path: Path, engine: Engine) -> Loaded:
    """Read a verified checkpoint of a run, as far as it concerns this rank.

    Weights and moments are on the meta device until `Loaded.finish_reading` reads them into the
    memory of the engine, so call that when the state is known to fit.

    If it was saved in another layout, or in one of logical ranks, the state of each rank is taken
    from rank 0.

    Raises:
        CheckpointError: it is damaged, or is not a checkpoint of a run.
    """
    reader = CheckpointReader(path)
    values, info = reader.values, reader.manifest.info
    if not isinstance(values, dict) or not {"model", "engine", "run"} <= values.keys():
        raise CheckpointError(f"'{path}' is a checkpoint, but not of a run")
    same_on_all = engine.parallel_model.logical_ranks is not None
    other = was_saved_in_another_layout(info, engine)
    sharded, later = sharding_template(engine), set() if is_imported(info) else trained_keys(values)
    loaded = reader.read(
        lambda key, *kind: (outline if key in later else sharded)(key, *kind),
        rank=0 if same_on_all or other else None,
    )
    if "history" in loaded.shared:  # an imported checkpoint has none
        loaded.shared["history"] = read_history(loaded.shared["history"], path)
    model = unwrap(engine.model)
    for state in loaded.shared["hooks"].values():
        for key, value in state.items():
            if isinstance(value, Mapping) and all(isinstance(v, Tensor) for v in value.values()):
                state[key] = local_weights(model, value, all_names=False)
    if is_imported(loaded.info):
        return fit_imported(loaded, engine)
    own = loaded.own or {}
    loaded.shared["hooks"] |= own.get("hooks", {})
    loaded.shared |= {part: own[part] for part in ("events", "step", "schedule") if part in own}
    loaded.finish_reading = lambda: _read_trained(reader, loaded.shared, engine)
    return loaded


def _read_trained(reader: CheckpointReader, shared: dict[str, Any], engine: Engine) -> None:
    """Read weights and moments into the memory of an engine that they fit."""
    values = reader.values
    memory = trained_memory(engine, values)
    shared["model"] = reader.read_part(values["model"], memory)
    shared["engine"]["optimizers"] = reader.read_part(values["engine"]["optimizers"], memory)


def was_saved_in_another_layout(info: Mapping[str, Any], engine: Engine) -> bool:
    """Return whether a checkpoint was saved in another layout than the engine's."""
    saved = info.get("settings", {}).get("layout", str(Layout()))
    return bool(saved != str(engine.layout))
