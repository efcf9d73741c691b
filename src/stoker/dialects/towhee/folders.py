"""Checkpoints under the names of Towhee: ``epoch_N``, ``iteration_N`` and ``final_epoch``.

epoch_1/
    model.pth           the weights, as torch.save writes a state dict
    state.pt            epoch, optimizer, scheduler and last results
    README.md           the model card
    step-00000002/      the rest of the checkpoint, hard-linked to ``checkpoints/``

Tensors that are in model.pth or state.pt are not stored a second time; `opened` restores the files
of the checkpoint that were left out.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from stoker import Run, hooks
from stoker.checkpoint import CheckpointError, Checkpoints, flatten
from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.names import MANIFEST, MODEL, checkpoint_name
from stoker.checkpoint.stored_elsewhere import is_incomplete, leave_out, restore
from stoker.core import dist
from stoker.core.log import get_logger
from stoker.dialects import torch_files
from stoker.dialects.towhee.trainer_utils import MODEL_NAME, STATE_CHECKPOINT_NAME
from stoker.resume.lookup import find_checkpoint
from stoker.rundir import files
from stoker.storage import LocalStorage

_log = get_logger()
FINAL = "final_epoch"


class Folders(hooks.Checkpoint):
    """Save a run so that it can be resumed, and publish requested saves under their names.

    Until the run ends, its checkpoints are in ``output_dir/checkpoints``.

    Args:
        output_dir: The folder of the training.
        named: The folder of named saves; None if only flags request them.
        settings: The training config, to recognize an interrupted run.
        save: Publishes a checkpoint: called with the target and the folder of the checkpoint.
        fresh: Remove the checkpoints of an interrupted run first.
    """

    def __init__(
        self,
        output_dir: Path,
        named: Path | None,
        settings: dict[str, Any],
        save: Callable[[Path, Path], None],
        *,
        fresh: bool,
    ) -> None:
        super().__init__(None, keep=2, folder=output_dir / files.CHECKPOINTS)
        self._output_dir, self._named, self._settings = output_dir, named or output_dir, settings
        self._publish_as, self._names_last, self._fresh = save, named is not None, fresh
        self._run: Run | None = None
        self._checkpoints: Checkpoints
        self.last: Path | None = None
        """The last save that was published."""

    def opened(self, checkpoints: Checkpoints) -> None:
        """Remove the checkpoints of an interrupted run if this one starts from scratch."""
        self._checkpoints = checkpoints
        if self._fresh:
            _remove(checkpoints)
        self._fresh = False

    def before_train(self, run: Run) -> None:
        """Publish a named save that a kill prevented."""
        super().before_train(run)
        self._run = run
        path = self._path(run.step)
        name = Manifest.read(path).info.get("named") if (path / MANIFEST).is_file() else None
        if name is not None:
            self._publish(run.step, name)

    def info(self) -> dict[str, Any]:
        """Return the settings of the run and the name of this save."""
        return {"training_config": self._settings, "named": self._name()}

    def must_wait(self, run: Run) -> bool:
        """Wait for a save that is published under a name."""
        return self._name() is not None

    def after_save(self, path: Path) -> None:
        """Publish the checkpoint under its name, if it has one."""
        name = self._name()
        if name is not None and self._run is not None:
            self._publish(self._run.step, name)

    def _publish(self, step: int, name: str) -> None:
        source, target = self._path(step), self._named / name
        if not _is_published(source, target):
            final = self._output_dir / FINAL
            if dist.is_main() and final.is_symlink() and final.resolve() == target.resolve():
                final.unlink()  # this save is not the end
            self._publish_as(target, source)
        self.last = target

    def _path(self, step: int) -> Path:
        return self._checkpoints.folder / checkpoint_name(step)

    def _name(self) -> str | None:
        run = self._run
        if run is None or not run.step:
            return None
        complete = run.epoch == run.current_epoch
        if self.wanted(run) and not complete:
            return f"iteration_{run.step}"
        last = run.done and self._names_last and not run.requests.signal
        return f"epoch_{run.epoch}" if complete and (self.wanted(run) or last) else None


def publish(target: Path, *write: Callable[[Path], None]) -> None:
    """Build a folder by these functions and publish it atomically; all processes must call it."""
    partial = target.with_name(f".{target.name}.partial")
    if dist.is_main():
        _delete(partial)
        partial.mkdir(parents=True)
    dist.broadcast_from_rank0("")  # a barrier
    for one in write:
        one(partial)
    if dist.is_main():
        for checkpoint in Checkpoints(partial).list():
            leave_out(checkpoint, _tensors_in(partial).keys())
        _delete(target)
        LocalStorage(target.parent).publish(partial.name, target.name)
    dist.broadcast_from_rank0("")


def write_state(path: Path, state: dict[str, Any], weights: dict[str, Any]) -> None:
    """Write the files of Towhee, which ``torch.load(…, weights_only=True)`` reads."""
    torch_files.write(path / MODEL_NAME, weights)
    torch_files.write(path / STATE_CHECKPOINT_NAME, state)


def read_state(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the weights and the state in the files of Towhee; nothing in them can run code."""
    paths = [folder / name for name in (MODEL_NAME, STATE_CHECKPOINT_NAME)]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise CheckpointError(f"'{folder}' is no saved training: {' and '.join(missing)} missing")
    weights, state = map(torch_files.read, paths)
    return weights, state


def has_checkpoint(folder: Path) -> bool:
    """Return whether a folder was saved by Stoker, and not by Towhee."""
    return not (folder / MODEL_NAME).is_file() or bool(Checkpoints(folder).list())


def link(target: Path, folder: Path, weights: Mapping[str, Any]) -> bool:
    """Make ``target`` a link to a saved folder if it has these weights; return whether it has."""
    if not dist.is_main():
        return bool(dist.broadcast_from_rank0(""))
    linked = False
    with suppress(CheckpointError, OSError):  # another kind of save; a system without links
        saved, _ = read_state(folder)
        if saved.keys() == weights.keys() and all(_same(saved[n], weights[n]) for n in saved):
            _delete(target)
            target.symlink_to(os.path.relpath(folder, target.parent), target_is_directory=True)
            linked = True
    dist.broadcast_from_rank0("linked" if linked else "")
    return linked


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and one.equal(other.cpu())
    return type(one) is type(other) and bool(one == other)


@contextmanager
def opened(path: str | Path, scratch: Path) -> Iterator[Path]:
    """Provide the complete checkpoint of a saved folder, in ``scratch`` if it has to be restored.

    Raises:
        CheckpointError: There is none, or it is damaged.
    """
    folder = Path(path)
    steps = Checkpoints(folder).list()
    if not steps or not is_incomplete(steps[-1]):
        found = find_checkpoint(folder, None)
        assert found is not None
        yield found
        return
    restored = scratch / steps[-1].name
    try:
        if dist.is_main():
            _delete(scratch)
            _link_tree(steps[-1], restored)
            restore(restored, _tensors_in(folder))
        dist.broadcast_from_rank0("")
        yield restored
    except CheckpointError as error:
        raise type(error)(str(error).replace(str(restored), str(folder))) from error
    finally:
        if dist.is_main():
            _delete(scratch)


def _tensors_in(folder: Path) -> dict[str, Tensor]:
    """Return the tensors in model.pth and state.pt by their keys in a checkpoint."""
    weights, state = read_state(folder)
    optimizers = {"engine": {"optimizers": {"": state["optimizer_state_dict"]}}}
    named = {MODEL + name: one for name, one in weights.items() if isinstance(one, Tensor)}
    return named | flatten(optimizers)[0]


def was_interrupted(output_dir: Path, settings: dict[str, Any], overwrite: bool) -> bool:
    """Return whether a run with these settings was interrupted and can be resumed.

    Raises:
        FileExistsError: The folder has another run, and ``overwrite`` is False.
    """
    checkpoints = Checkpoints(output_dir / files.CHECKPOINTS)
    newest = checkpoints.newest()
    then = Manifest.read(newest).info.get("training_config") if newest is not None else None
    if then == settings:
        return True
    others = newest is not None or (output_dir / FINAL).exists()
    if others and not overwrite:
        raise FileExistsError(
            f"output_dir '{output_dir}' holds another run, and overwrite_output_dir is False"
        )
    if then is not None:
        changed = ", ".join(name for name in settings if then.get(name) != settings[name])
        _log.warning(
            f"a run in '{output_dir}' was interrupted, but {changed} differ: starting from scratch"
        )
    return False


def forget(output_dir: Path) -> None:
    """Remove the checkpoints of a finished run."""
    folder = output_dir / files.CHECKPOINTS
    _remove(Checkpoints(folder))
    if dist.is_main():
        shutil.rmtree(folder / files.LOCK, ignore_errors=True)
        with suppress(OSError):  # the folder may have other files
            (folder / files.IDENTITY).unlink(missing_ok=True)
            folder.rmdir()


def _remove(checkpoints: Checkpoints) -> None:
    dist.broadcast_from_rank0("")
    if dist.is_main():
        for path in checkpoints.list():
            shutil.rmtree(path)
    dist.broadcast_from_rank0("")


def _delete(path: Path) -> None:
    """Remove a folder, or the link to one."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _is_published(source: Path, target: Path) -> bool:
    """Return whether the checkpoint is already published under this name."""
    one, other = (folder / MANIFEST for folder in (source, target / source.name))
    return other.exists() and one.read_bytes() == other.read_bytes()


def copy_checkpoint(source: Path, folder: Path) -> None:
    """Hard-link a checkpoint into a folder, or copy it where that is impossible."""
    if dist.is_main():
        _link_tree(source, folder / source.name)


def _link_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)
