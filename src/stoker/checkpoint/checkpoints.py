"""`Checkpoints`: the folder of checkpoints of a run."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Self, TypeAlias

from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.names import checkpoint_name, list_steps, open_checkpoint
from stoker.checkpoint.read.load import Loaded, read_checkpoint, verify_checkpoint
from stoker.checkpoint.retention import Best, Retention
from stoker.checkpoint.sharding.rank_channel import RankChannel
from stoker.checkpoint.sharding.shared_folder import check_shared, is_shared
from stoker.checkpoint.write.commit import Background, clean, commit, stores_once
from stoker.checkpoint.write.frozen import FrozenTensors
from stoker.checkpoint.write.snapshot import Snapshot, Snapshotter
from stoker.checkpoint.write.upload import upload
from stoker.core import dist
from stoker.core.errors import CheckpointError
from stoker.core.log import get_logger
from stoker.storage import Lease, LocalStorage, Storage, local_path, open_storage, store_url, url_of
from stoker.storage.locations import copy_folder

_HAND_OVER = 60.0  # seconds for a process that leaves an elastic job to finish its last save

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

    In the working folder of a run whose place is a store, checkpoints are in the folder, in the
    store, or in both: `list` has all, and `upload` copies one to the store. If the ranks do not
    share that folder, `save` writes straight to the store.

    Args:
        folder: where checkpoints are stored, as a path, a URL or a `Storage`; it is made when
            opened.
        keep: how many of the newest to keep; None keeps all.
        keep_every: keep those whose step is a multiple of it for good.
        best: keep those with the best metric while they are the best.
        on_saved: called with the path of every checkpoint when it is complete on disk and old ones
            are removed, on rank 0, in the thread that wrote it.

    Attributes:
        is_direct: whether saves go straight to the store.
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
        self.folder = _local_folder(folder, self._storage)
        self._store = _store_behind(self._storage, self.folder)
        self.is_direct = False
        self.background = Background()
        self._on_saved = on_saved
        self._retention = Retention(keep, keep_every, best)
        self._leases: list[Lease] = []
        self._uploading: int | None = None
        self._unsaved: Exception | None = None
        self._channel: RankChannel | None = None
        self._snapshotter: Snapshotter | None = None
        self._frozen = FrozenTensors()
        self._owner = 0
        self._infos: dict[int, dict[str, Any] | None] = {}
        self._stored_infos: dict[int, dict[str, Any] | None] = {}

    def open(self) -> None:
        """Become the only run that writes here, and clean up what a killed run left.

        `save` opens the folder if necessary. Open it before `newest`, so that a checkpoint which a
        killed run was replacing is found.
        """
        if self._channel is not None or not self._writes_here:
            return
        channel = RankChannel()
        with channel.fail_together():
            if channel.rank == 0:
                self._take_leases()
        try:
            self._check_shared(channel)
        except BaseException:
            self._release_leases()
            raise
        self._owner = int(channel.all_gather(os.getpid())[0])
        self._channel, self._snapshotter = channel, Snapshotter(channel)

    @property
    def _writes_here(self) -> bool:
        """Whether this process writes: in an elastic job, the first member does that alone."""
        return dist.members() is None or dist.is_main()

    @property
    def is_open(self) -> bool:
        """Whether this process has opened the folder."""
        return self._channel is not None

    def close(self) -> None:
        """Wait for the save in progress and let other runs write here.

        Raises:
            CheckpointError: the last save could not be written to the store.
        """
        try:
            self.wait()
            if self._unsaved is not None:
                raise self._unsaved
        finally:
            self._release_leases()
            self._channel = self._snapshotter = self._unsaved = None

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
        required: bool = True,
    ) -> Path:
        """Copy the state and return; it is written in the background.

        If a save is still in progress, wait for it first; if it has failed, raise its error. On the
        way to a store that does not answer, a save may take long, and training is not to wait for
        it: then a save that is not required is left out, and a failed one is logged.

        Args:
            step: names the checkpoint; one of the same step is replaced.
            shared: the state that all ranks have in common; tensors under the key ``"model"``
                go into ``model.safetensors`` by their own names.
            own: the state of this rank alone, such as random states.
            info: plain values to read without loading; `Best` uses ``info["metrics"]``.
            wait: return when the checkpoint is on disk.
            required: save even if that means to wait for a store.
        """
        if step < 0:
            raise ValueError(f"step must be at least 0, got {step}")
        path = self.folder / checkpoint_name(step)
        if not self._writes_here:
            return path
        self.open()
        assert self._snapshotter is not None
        if self.is_direct and not required and dist.all_reduce_max(float(self.background.busy))[0]:
            get_logger().warning(
                f"step {step} is not saved: '{self._storage}' is still receiving the save before it"
            )
            return path
        self.background.wait()
        snapshot = self._snapshotter.take(step, shared, own, info or {})
        self.background.start(lambda: self._commit(snapshot))
        if wait:
            self.wait()
        return path

    def wait(self) -> None:
        """Wait until the save in progress is on disk; raise its error if it failed."""
        self.background.wait()

    def check(self) -> None:
        """Raise the error of a save that failed; never wait."""
        self.background.check()

    def newest(self) -> Path | None:
        """Return the newest checkpoint that verifies; log why newer ones are skipped."""
        name = dist.decide_on_rank0(self._newest_name, None)
        return None if name is None else self.folder / name

    def _newest_name(self) -> str | None:
        for path in reversed(self.list()):
            faults = self.verify(path)
            if not faults:
                return path.name
            get_logger().warning(f"skipped checkpoint '{path}': {'; '.join(faults)}")
        return None

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
                not modified. Other tensors are loaded unsharded.
            rank: load the state of this rank alone, by default the current one.
            verify: check every byte first. `newest` has already done so.
        """
        if verify:
            faults: Faults = dist.decide_on_rank0(partial(self.verify, path), [])
            if faults:
                raise CheckpointError(f"checkpoint '{path}' is damaged: {'; '.join(faults)}")
        loaded = read_checkpoint(self._at(path), into, rank)
        self.continue_from(path)
        return loaded

    def continue_from(self, path: str | Path) -> None:
        """Link to the files of this checkpoint what has not changed since, instead of the newest.

        Call it after loading a checkpoint of another folder; `load` does so.
        """
        self._frozen.continue_from(self._at(path))

    def list(self) -> Paths:
        """Return the checkpoints that exist, oldest first; `verify` checks them."""
        found = list_steps(self._storage)
        if self._store is not None:
            found |= list_steps(self._store)
        return [self.folder / name for _, name in sorted(found.items())]

    def list_stored(self) -> dict[int, str]:
        """Return step → name of the checkpoints in the store behind the folder, oldest first."""
        return {} if self._store is None else list_steps(self._store)

    def list_local(self) -> dict[int, str]:
        """Return step → name of the checkpoints in the folder itself, oldest first."""
        return list_steps(self._storage)

    def upload(self, step: int) -> None:
        """Copy a checkpoint to the store behind the folder, and remove old ones there."""
        assert self._store is not None
        assert isinstance(self._storage, LocalStorage)
        self._uploading = step  # it is not removed meanwhile
        try:
            upload(self._storage, self._store, step, self._check_leases)
        finally:
            self._uploading = None
        self._check_leases()
        names = list_steps(self._store)
        for old in self._retention.to_remove(names, step, self._stored_info):
            self._store.delete(names[old])

    def is_kept_for_good(self, step: int) -> bool:
        """Return whether a checkpoint of the folder is kept for another reason than its age."""
        steps = list_steps(self._storage)
        newest_only = replace(self._retention, keep=1)
        return step in steps and step not in newest_only.to_remove(steps, max(steps), self._info)

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
        inside = Path(path).parent == self.folder and self._store is None
        return self._storage.below(Path(path).name) if inside else open_checkpoint(path)

    def _take_leases(self) -> None:
        for storage in filter(None, (self._storage, self._store)):
            try:
                storage.create()
                self._leases.append(self._lease(storage))
                clean(storage)
            except OSError as error:
                self._release_leases()
                raise CheckpointError(
                    f"the checkpoint folder '{storage}' cannot be written to: {error.strerror}"
                ) from error
            except BaseException:
                self._release_leases()
                raise

    def _lease(self, storage: Storage) -> Lease:
        """Take the lease; one that another member of an elastic job had is released soon."""
        deadline = monotonic() + (_HAND_OVER if dist.inherited() else 0.0)
        while True:
            try:
                return storage.lease(self._lost)
            except CheckpointError:
                if monotonic() > deadline:
                    raise
                sleep(0.05)

    def _release_leases(self) -> None:
        while self._leases:
            self._leases.pop().release()

    def _check_shared(self, channel: RankChannel) -> None:
        """Check that all ranks see the folder; if not, use the store behind it instead."""
        if self._store is None:
            check_shared(self._storage, channel)
        elif not is_shared(self._storage, channel):
            self._storage, self._store, self.is_direct = self._store, None, True
            get_logger().info(
                f"the ranks have no folder in common: they save straight to '{self._storage}'"
            )

    def _lost(self, error: CheckpointError) -> None:
        """Let the run end at its next step: another process has taken the lease."""
        self.background.error = self.background.error or error

    def _check_leases(self) -> None:
        for lease in self._leases:
            lease.check()

    def _commit(self, snapshot: Snapshot) -> None:
        """Commit a snapshot, then remove old checkpoints; runs in the background on all ranks."""
        assert self._channel is not None
        try:
            self._write(self._channel, snapshot)
            self._unsaved = None
        except CheckpointError as error:
            if not self.is_direct:
                raise
            self._unsaved = error  # raised by `close`, if no later save succeeds
            get_logger().warning(f"{error}: training continues")
            return
        if self._channel.rank == 0:
            self._infos[snapshot.step] = snapshot.info
            self._remove_old(snapshot.step)
            if self._on_saved is not None:
                self._on_saved(self.folder / checkpoint_name(snapshot.step))

    def _write(self, channel: RankChannel, snapshot: Snapshot) -> None:
        """Commit a snapshot; what has not changed since the last one is linked."""
        if self._frozen.is_new:
            for _, name in [*list_steps(self._storage).items()][-1:]:
                self._frozen.continue_from(self._storage.below(name))
        commit(self._storage, channel, snapshot, self._frozen, self._owner, self._check_leases)
        self._frozen.continue_from(self._storage.below(checkpoint_name(snapshot.step)))

    def _remove_old(self, saved: int) -> Paths:
        removed = []
        self._check_leases()
        for path in self._to_remove(saved):
            try:
                self._storage.delete(path.name)
                removed.append(path)
            except OSError as error:
                get_logger().warning(f"could not remove '{path}': {error.strerror}")
        return removed

    def _to_remove(self, saved: int) -> Paths:
        names = list_steps(self._storage)
        old = self._retention.to_remove(names, saved, self._info)
        return [self.folder / names[step] for step in old if step != self._uploading]

    def _info(self, step: int) -> dict[str, Any] | None:
        """Return the info of a checkpoint that verifies, else None; each is verified once."""
        if step not in self._infos:
            quick = stores_once(self._storage)
            self._infos[step] = _info_in(self._storage.below(checkpoint_name(step)), quick=quick)
        return self._infos[step]

    def _stored_info(self, step: int) -> dict[str, Any] | None:
        """Return the info of a checkpoint in the store, None if parts of it are missing."""
        if step not in self._stored_infos and self._store is not None:
            name = checkpoint_name(step)
            self._stored_infos[step] = _info_in(self._store.below(name), quick=True)
        return self._stored_infos.get(step)


def _info_in(checkpoint: Storage, *, quick: bool) -> dict[str, Any] | None:
    damaged = verify_checkpoint(checkpoint, quick=quick, structure=False)
    return None if damaged else Manifest.read(checkpoint).info


def _local_folder(folder: str | Path | Storage, storage: Storage) -> Path:
    """Return the path that stands for a folder, so that its checkpoints have paths."""
    if not isinstance(folder, str | Path):
        return Path(str(storage))
    url = store_url(folder)
    return local_path(folder) if url is None else copy_folder(url)


def _store_behind(storage: Storage, folder: Path) -> Storage | None:
    """Return the store that a working folder stands for, None if it stands for itself."""
    url = url_of(folder) if isinstance(storage, LocalStorage) else None
    return open_storage(url) if url is not None else None
