"""`Checkpoints`: the folder of checkpoints of a run."""

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.names import checkpoint_name, list_steps
from stoker.checkpoint.read.load import Loaded, read_checkpoint, verify_checkpoint
from stoker.checkpoint.retention import Best, Retention
from stoker.checkpoint.sharding.rank_channel import RankChannel
from stoker.checkpoint.sharding.shared_folder import check_shared
from stoker.checkpoint.write.commit import Background, clean, commit
from stoker.checkpoint.write.snapshot import Snapshot, Snapshotter
from stoker.core import dist
from stoker.core.errors import CheckpointError
from stoker.core.log import get_logger
from stoker.storage import Lease, Storage, open_storage

Paths: TypeAlias = list[Path]
Faults: TypeAlias = list[str]


class Checkpoints:
    """A folder with one checkpoint per step; each is complete or absent.

    Every rank of a job creates one and calls the same methods at the same steps. A save takes
    this path: `save` → `Snapshotter.take` copies the state → `commit` writes and publishes it in
    the background → `Retention` decides what to remove.

    >>> with Checkpoints("runs/a/checkpoints", keep=2) as checkpoints:
    ...     if (path := checkpoints.newest()) is not None:
    ...         model.load_state_dict(checkpoints.load(path).shared["model"])
    ...     checkpoints.save(500, {"model": model.state_dict()})

    Args:
        folder: where checkpoints are stored, as a path or a `Storage`; it is made when opened.
        keep: how many of the newest to keep; None keeps all.
        keep_every: keep those whose step is a multiple of it for good.
        best: keep those with the best metric while they are the best.
        on_saved: called with the path of every checkpoint when it is complete on disk and old ones
            are removed, on rank 0, in the thread that wrote it.
    """

    def __init__(
        self,
        folder: str | Path | Storage,
        *,
        keep: int | None = 3,
        keep_every: int | None = None,
        best: Best | None = None,
        on_saved: Callable[[Path], None] | None = None,
    ) -> None:
        self._storage = open_storage(folder, "the folder of checkpoints")
        self.folder = Path(str(self._storage))
        self.background = Background()
        self._on_saved = on_saved
        self._retention = Retention(keep, keep_every, best)
        self._lease: Lease | None = None
        self._channel: RankChannel | None = None
        self._snapshotter: Snapshotter | None = None
        self._owner = 0
        self._infos: dict[int, dict[str, Any] | None] = {}

    def open(self) -> None:
        """Become the only run that writes here, and clean up what a killed run left.

        `save` opens the folder if necessary. Open it before `newest`, so that a checkpoint which a
        killed run was replacing is found.
        """
        if self._channel is not None:
            return
        channel = RankChannel()
        with channel.fail_together():
            if channel.rank == 0:
                self._take_lease()
        try:
            check_shared(self._storage, channel)
        except BaseException:
            self._release_lease()
            raise
        self._owner = int(channel.all_gather(os.getpid())[0])
        self._channel, self._snapshotter = channel, Snapshotter(channel)

    def close(self) -> None:
        """Wait for the save in progress and let other runs write here."""
        try:
            self.wait()
        finally:
            self._release_lease()
            self._channel = self._snapshotter = None

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
        """Copy the state and return; it is written in the background.

        If a save is still in progress, wait for it first; if it has failed, raise its error.

        Args:
            step: names the checkpoint; one of the same step is replaced.
            shared: the state that all ranks have in common; tensors under the key ``"model"``
                go into ``model.safetensors`` by their own names.
            own: the state of this rank alone, such as random states.
            info: plain values to read without loading; `Best` uses ``info["metrics"]``.
            wait: return when the checkpoint is on disk.
        """
        if step < 0:
            raise ValueError(f"step must be at least 0, got {step}")
        self.open()
        assert self._snapshotter is not None
        self.background.wait()
        snapshot = self._snapshotter.take(step, shared, own, info or {})
        self.background.start(lambda: self._commit(snapshot))
        if wait:
            self.wait()
        return self.folder / checkpoint_name(step)

    def wait(self) -> None:
        """Wait until the save in progress is on disk; raise its error if it failed."""
        self.background.wait()

    def check(self) -> None:
        """Raise the error of a save that failed; never wait."""
        self.background.check()

    def newest(self) -> Path | None:
        """Return the newest checkpoint that verifies; log why newer ones are skipped."""
        found = None
        for path in reversed(self.list()) if dist.is_main() else ():
            faults = self.verify(path)
            if not faults:
                found = path
                break
            get_logger().warning(f"skipped checkpoint '{path}': {'; '.join(faults)}")
        return dist.broadcast_from_rank0(found)

    def verify(self, path: str | Path) -> Faults:
        """Return what is wrong with a checkpoint, one sentence per fault; none if complete."""
        return verify_checkpoint(self._at(path))

    def load(
        self, path: str | Path, *, into: Any = None, rank: int | None = None, verify: bool = True
    ) -> Loaded:
        """Read a checkpoint. Nothing in it can run code.

        Args:
            path: the folder of the checkpoint.
            into: a state of the same structure, whose DTensors define the sharding to load; it is
                not modified. Other tensors are loaded unsharded. Or a function that returns such a
                DTensor, or None, for a key and a shape.
            rank: load the state of this rank alone, by default the current one.
            verify: check every byte first. `newest` has already done so.
        """
        if verify:
            faults = dist.broadcast_from_rank0(self.verify(path) if dist.is_main() else [])
            if faults:
                raise CheckpointError(f"checkpoint '{path}' is damaged: {'; '.join(faults)}")
        return read_checkpoint(self._at(path), into, rank)

    def list(self) -> Paths:
        """Return the checkpoints that exist, oldest first; `verify` checks them."""
        return [self.folder / name for name in list_steps(self._storage).values()]

    def prune(self, *, dry_run: bool = False) -> Paths:
        """Remove what the retention of this folder does not keep, and return it.

        Args:
            dry_run: only return what would be removed; nothing is opened or changed.
        """
        if not dry_run:
            self.open()
            self.wait()
        steps = [*list_steps(self._storage)]
        if not steps:
            return []
        return self._to_remove(steps[-1]) if dry_run else self._remove_old(steps[-1])

    def _at(self, path: str | Path) -> Storage:
        """Return the storage of a checkpoint, which may be in another folder."""
        inside = Path(path).parent == self.folder
        return self._storage.below(Path(path).name) if inside else open_storage(path)

    def _take_lease(self) -> None:
        try:
            self._storage.create()
            self._lease = self._storage.lease(self._lost)
            clean(self._storage)
        except OSError as error:
            self._release_lease()
            raise CheckpointError(
                f"the checkpoint folder '{self.folder}' cannot be written to: {error.strerror}"
            ) from error

    def _release_lease(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _lost(self, error: CheckpointError) -> None:
        """Let the run end at its next step: another process has taken the lease."""
        self.background.error = self.background.error or error

    def _check_lease(self) -> None:
        if self._lease is not None:
            self._lease.check()

    def _commit(self, snapshot: Snapshot) -> None:
        """Commit a snapshot, then remove old checkpoints; runs in the background on all ranks."""
        assert self._channel is not None
        commit(self._storage, self._channel, snapshot, self._owner, self._check_lease)
        if self._channel.rank == 0:
            self._infos[snapshot.step] = snapshot.info
            self._remove_old(snapshot.step)
            if self._on_saved is not None:
                self._on_saved(self.folder / checkpoint_name(snapshot.step))

    def _remove_old(self, saved: int) -> Paths:
        removed = []
        self._check_lease()
        for path in self._to_remove(saved):
            try:
                self._storage.delete(path.name)
                removed.append(path)
            except OSError as error:
                get_logger().warning(f"could not remove '{path}': {error.strerror}")
        return removed

    def _to_remove(self, saved: int) -> Paths:
        names = list_steps(self._storage)
        return [self.folder / names[s] for s in self._retention.to_remove(names, saved, self._info)]

    def _info(self, step: int) -> dict[str, Any] | None:
        """Return the info of a checkpoint that verifies, else None; each is verified once."""
        if step not in self._infos:
            checkpoint = self._storage.below(checkpoint_name(step))
            damaged = verify_checkpoint(checkpoint, structure=False)
            self._infos[step] = None if damaged else Manifest.read(checkpoint).info
        return self._infos[step]
