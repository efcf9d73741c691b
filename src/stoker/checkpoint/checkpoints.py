"""The folder of checkpoints of a run: what is in it, what is added, what goes."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from stoker.checkpoint.format.manifest import Manifest, faults_of
from stoker.checkpoint.format.names import checkpoint_name
from stoker.checkpoint.read.load import Loaded, read_checkpoint
from stoker.checkpoint.retention import Best, Retention
from stoker.checkpoint.sharding.rank_channel import RankChannel
from stoker.checkpoint.write.background import Background
from stoker.checkpoint.write.commit import clean, publish, remove, step_of, write_files
from stoker.checkpoint.write.snapshot import Snapshot, Snapshotter
from stoker.core import dist
from stoker.core.errors import CheckpointError
from stoker.core.log import get_logger
from stoker.storage.local import Record
from stoker.storage.lock import Lock

Paths: TypeAlias = list[Path]
Faults: TypeAlias = list[str]


class Checkpoints:
    """A folder with a checkpoint per step, each whole or absent.

    Every process of a job makes one and calls the same methods at the same steps.

    >>> with Checkpoints("runs/a/checkpoints", keep=2) as checkpoints:
    ...     if (path := checkpoints.newest()) is not None:
    ...         model.load_state_dict(checkpoints.load(path).shared["model"])
    ...     checkpoints.save(500, {"model": model.state_dict()})

    Args:
        folder: made when it is opened.
        keep: how many of the newest stay; None means all.
        keep_every: those whose step is a multiple of it stay for good.
        best: those with the best results stay as long as they are the best.
        on_saved: is told of every checkpoint when it is whole on the disk and old ones are gone,
            in the first process, by the thread that wrote it.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        keep: int | None = 3,
        keep_every: int | None = None,
        best: Best | None = None,
        on_saved: Callable[[Path], None] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._on_saved = on_saved
        self._retention = Retention(keep, keep_every, best)
        self.background = Background()
        self._lock = Lock(self.folder)
        self._peers: RankChannel | None = None
        self._camera: Snapshotter | None = None
        self._owner = 0
        self._infos: dict[int, dict[str, Any] | None] = {}

    def open(self) -> None:
        """Become the only run that writes here, and put in order what a killed one left.

        `save` does it if need be; before `newest`, it makes sure that nothing is overlooked.
        """
        if self._peers is not None:
            return
        peers = RankChannel()
        with peers.together():
            if peers.rank == 0:
                self._take_folder()
        self._owner = int(peers.exchange(os.getpid())[0])
        self._peers, self._camera = peers, Snapshotter(peers)

    def close(self) -> None:
        """Wait for the save under way and let others write here."""
        try:
            self.wait()
        finally:
            self._lock.release()
            self._peers = self._camera = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def save(
        self,
        step: int,
        shared: Any,
        own: Any = None,
        info: dict[str, Any] | None = None,
        *,
        wait: bool = False,
    ) -> Path:
        """Copy the state and return; it is written beside the training.

        If a save is still under way, wait for it first; if it has failed, raise its error.

        Args:
            step: names the checkpoint; one of the same step is replaced.
            shared: a state that all processes have together; tensors below the key ``"model"``
                go into ``model.safetensors`` under their own names.
            own: what belongs to this process alone, such as random states.
            info: plain values to be read without loading; ``info["metrics"]`` serves `Best`.
            wait: return when it is on the disk.
        """
        if step < 0:
            raise ValueError(f"step must be at least 0, got {step}")
        self.open()
        assert self._camera is not None
        self.background.wait()
        snapshot = self._camera.take(step, shared, own, info or {})
        self.background.start(lambda: self._commit(snapshot))
        if wait:
            self.wait()
        return self.folder / checkpoint_name(step)

    def wait(self) -> None:
        """Wait until the save under way is on the disk; raise its error if it failed."""
        self.background.wait()

    def check(self) -> None:
        """Raise the error of a save that failed; never waits."""
        self.background.check()

    def newest(self) -> Path | None:
        """The newest checkpoint that verifies. Each one skipped is named, with what is wrong."""
        found = ""
        for path in reversed(self.list()) if dist.is_main() else ():
            faults = faults_of(path)
            if not faults:
                found = str(path)
                break
            get_logger().warning(f"skipped checkpoint '{path}': {'; '.join(faults)}")
        found = dist.broadcast_from_rank0(found)
        return Path(found) if found else None

    def verify(self, path: str | Path) -> Faults:
        """What is wrong with a checkpoint, a sentence each; nothing if it is whole."""
        return faults_of(Path(path))

    def load(
        self, path: str | Path, *, into: Any = None, rank: int | None = None, verify: bool = True
    ) -> Loaded:
        """Read a checkpoint. Nothing in it can run code.

        Args:
            path: the folder of the checkpoint.
            into: a state of the same form, whose DTensors say how to shard those of the
                checkpoint; it is not written to. Tensors that are none there come whole. Or a
                function that gives such a DTensor, or None, for a name and a shape.
            rank: whose own state to read, if not that of this process.
            verify: look at every byte first; `newest` has done so already.
        """
        path = Path(path)
        if verify:
            faults = faults_of(path) if dist.is_main() else []
            faults = json.loads(dist.broadcast_from_rank0(json.dumps(faults)))
            if faults:
                raise CheckpointError(f"checkpoint '{path}' is damaged: {'; '.join(faults)}")
        return read_checkpoint(path, into, rank)

    def list(self) -> Paths:
        """Checkpoints that exist, oldest first; whether they are whole, `verify` says."""
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        steps = {step: path for path in found if (step := step_of(path)) is not None}
        return [steps[step] for step in sorted(steps)]

    def prune(self, *, dry_run: bool = False) -> Paths:
        """Remove what the rule of this folder does not keep, as each save does; those removed.

        Args:
            dry_run: only say which would go; this opens nothing and changes nothing.
        """
        if not dry_run:
            self.open()
            self.wait()
        paths = self.list()
        newest = step_of(paths[-1]) if paths else None
        if newest is None:
            return []
        return self._old(newest) if dry_run else self._remove_old(newest)

    def _take_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.take()
            clean(self.folder)
        except OSError as error:
            self._lock.release()
            what = f"the checkpoint folder '{self.folder}' cannot be written to: {error.strerror}"
            raise CheckpointError(what) from error

    def _commit(self, snapshot: Snapshot) -> None:
        """Bring a snapshot to the disk; all processes, in the background."""
        assert self._peers is not None
        partial = self.folder / f".{checkpoint_name(snapshot.step)}.partial-{self._owner}"
        try:
            with self._peers.together():
                records = self._write(partial, snapshot)
            files: dict[str, Record] = {}
            for others in self._peers.exchange(
                {n: [r.size, r.xxh3_128] for n, r in records.items()}
            ):
                files |= {name: Record(*record) for name, record in others.items()}
            with self._peers.together():
                if self._peers.rank == 0:
                    self._publish(partial, snapshot, files)
        except BaseException:
            if self._peers.rank == 0:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        if self._peers.rank == 0:
            self._remove_old(snapshot.step)
            if self._on_saved is not None:
                self._on_saved(self.folder / checkpoint_name(snapshot.step))

    def _write(self, partial: Path, snapshot: Snapshot) -> dict[str, Record]:
        try:
            return write_files(partial, snapshot.files())
        except OSError as error:
            raise self._disk_error(snapshot, error) from error

    def _publish(self, partial: Path, snapshot: Snapshot, files: dict[str, Record]) -> None:
        assert self._peers is not None
        world_size = self._peers.world_size
        manifest = Manifest(snapshot.step, snapshot.info, world_size, files, snapshot.split)
        try:
            publish(partial, manifest)
        except OSError as error:
            raise self._disk_error(snapshot, error) from error
        self._infos[snapshot.step] = snapshot.info

    def _remove_old(self, saved: int) -> Paths:
        removed = []
        for path in self._old(saved):
            try:
                remove(path)
                removed.append(path)
            except OSError as error:
                get_logger().warning(f"could not remove '{path}': {error.strerror}")
        return removed

    def _old(self, saved: int) -> Paths:
        paths = {step: path for path in self.list() if (step := step_of(path)) is not None}
        return [paths[step] for step in self._retention.to_remove(paths, saved, self._info)]

    def _info(self, step: int) -> dict[str, Any] | None:
        """The info of a checkpoint if it is whole; looked at once."""
        if step not in self._infos:
            path = self.folder / checkpoint_name(step)
            self._infos[step] = None if faults_of(path) else Manifest.read(path).info
        return self._infos[step]

    def _disk_error(self, snapshot: Snapshot, error: OSError) -> CheckpointError:
        what = f"checkpoint of step {snapshot.step} could not be written to '{self.folder}'"
        room = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            free = shutil.disk_usage(self.folder).free
            room = f" ({snapshot.size:,} bytes needed, {free:,} free)"
        left = self.list()
        kept = f"'{left[-1].name}' is still there" if left else "there is no earlier one"
        return CheckpointError(f"{what}: {error.strerror}{room}; {kept}")
