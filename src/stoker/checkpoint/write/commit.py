"""The commit protocol: how a snapshot becomes a checkpoint, and how a checkpoint is removed.

    .step-00000500.partial-71/      files are written and synced one by one, the manifest last
    step-00000500/                  the checkpoint exists from the rename on, and is then verified
    .aside-step-00000500/           an older one of the same step, until the new one is verified
    .trash-step-00000300/           being removed: renamed first, so that it never looks complete

Whenever the process is killed, every folder whose name does not start with a dot is complete.
"""

import errno
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.names import MANIFEST, checkpoint_name, frozen_file, list_steps
from stoker.checkpoint.format.state_tree import Json
from stoker.checkpoint.read.load import verify_checkpoint
from stoker.checkpoint.sharding.rank_channel import RankChannel
from stoker.checkpoint.sharding.shared_folder import PROBE
from stoker.checkpoint.write.frozen import FrozenTensors
from stoker.checkpoint.write.snapshot import Blocks, Snapshot
from stoker.core.errors import CheckpointError
from stoker.storage import FileRecord, Storage, crash_points


class Background:
    """Runs at most one job at a time; the error of a job is raised by the next call."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], None]) -> None:
        """Start a job, after waiting for the previous one."""
        self.wait()
        # not a daemon thread: a program that exits still finishes its last save
        self._thread = threading.Thread(target=self._run, args=(job,), name="stoker-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait for the job, and raise its error if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise the error of a job that has failed; never wait."""
        if self.error is not None and not self.busy:
            error, self.error = self.error, None
            raise error

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # every error has to reach the caller's thread
            self.error = error


_ASIDE = ".aside-"


def commit(
    storage: Storage,
    channel: RankChannel,
    snapshot: Snapshot,
    frozen: FrozenTensors,
    owner: int,
    check_lease: Callable[[], None] = lambda: None,
) -> None:
    """Write a snapshot as a checkpoint; all ranks call it, rank 0 publishes it.

    Args:
        storage: the folder of checkpoints.
        channel: connects the ranks.
        snapshot: what this rank writes.
        frozen: finds what stays the same, which is linked instead.
        owner: a number that is the same on all ranks, to tell leftovers of runs apart.
        check_lease: raises if another process has taken the folder.
    """
    partial = f".{checkpoint_name(snapshot.step)}.partial-{owner}"
    try:
        with channel.fail_together(), _explain_disk_errors(storage, snapshot):
            apart = frozen.find(snapshot)
            blocks = snapshot.files(apart, by_tensor=stores_once(storage))
            written, linked = write_files(storage.below(partial), blocks, frozen)
        files: dict[str, FileRecord] = {}
        plain = {name: [one.size, one.xxh3_128] for name, one in written.items()}
        moved = {file: [*names] for file, names in apart.items()}
        gathered = channel.all_gather([plain, moved, [*linked]])
        for records, _, _ in gathered:
            files |= {name: FileRecord(*record) for name, record in records.items()}
        with channel.fail_together(), _explain_disk_errors(storage, snapshot):
            if channel.rank == 0:
                split = _moved(snapshot.split, [names for _, names, _ in gathered])
                manifest = Manifest(snapshot.step, snapshot.info, channel.world_size, files, split)
                known = {name for _, _, names in gathered for name in names}
                publish(storage, partial, manifest, check_lease, known)
    except BaseException:
        if channel.rank == 0:
            with suppress(OSError):  # `clean` removes it at the next start
                storage.delete(partial)
        raise


def stores_once(storage: Storage) -> bool:
    """Return whether a storage is a store, which keeps equal contents once."""
    return bool(getattr(storage, "stores_once", False))


def write_files(
    partial: Storage, files: Mapping[str, Blocks], frozen: FrozenTensors
) -> tuple[dict[str, FileRecord], set[str]]:
    """Write the files of one rank into the partial folder, which all ranks share.

    Returns:
        The records of all files, and the names of those that were linked.
    """
    partial.create()
    crash_points.at("partial-made")
    linked = {name: one for name in files if (one := frozen.link(partial, name, files[name]))}
    written = {name: partial.write(name, files[name]) for name in files if name not in linked}
    return linked | written, {*linked}


def _moved(split: Mapping[str, Json], moved: Iterable[Mapping[str, list[str]]]) -> dict[str, Json]:
    """Return the pieces of tensors with those that ranks have written to a file for frozen ones."""
    places = {(file, name) for one in moved for file, names in one.items() for name in names}

    def place(piece: Json) -> Json:
        is_moved = (piece["file"], piece["name"]) in places
        return piece | {"file": frozen_file(piece["file"])} if is_moved else piece

    return {key: one | {"pieces": [*map(place, one["pieces"])]} for key, one in split.items()}


def publish(
    storage: Storage,
    partial: str,
    manifest: Manifest,
    check_lease: Callable[[], None],
    known: Collection[str] = (),
) -> None:
    """Turn the partial folder into a checkpoint; if verification fails, undo it and raise.

    Args:
        storage: the folder of checkpoints.
        partial: the folder in it with all files but the manifest.
        manifest: what is written last.
        check_lease: raises if another process has taken the folder.
        known: files whose bytes have just been read and compared.
    """
    crash_points.at("before-manifest")
    storage.below(partial).write(MANIFEST, [manifest.text().encode()])
    crash_points.at("manifest-written")
    check_lease()
    final = checkpoint_name(manifest.step)
    aside = _ASIDE + final
    if {final, aside} <= {*storage.list()}:
        storage.delete(aside)
    storage.publish(partial, final, replaced=aside)
    crash_points.at("published")
    # a store has checked what it received; sizes show that all of it is there
    quick = stores_once(storage)
    faults = verify_checkpoint(storage.below(final), quick=quick, structure=False, known=known)
    if faults:
        storage.delete(final)
        _restore_aside(storage, aside)
        raise CheckpointError(
            f"'{storage.below(final)}' did not read back as written: {'; '.join(faults)}"
        )
    crash_points.at("verified")
    if aside in storage.list():
        with suppress(OSError):  # this save is complete; `clean` removes the old one
            storage.delete(aside)


def clean(storage: Storage) -> None:
    """Finish or undo what a killed run left; call it only while holding the lease."""
    for name in storage.list():
        if name.startswith(_ASIDE):
            _settle_aside(storage, name)
    for name in storage.list():
        partial = name.startswith(".step-") and ".partial-" in name
        if partial or name.startswith((".trash-", PROBE)):
            with suppress(OSError):
                storage.delete(name)


def _settle_aside(storage: Storage, aside: str) -> None:
    """Remove the older checkpoint of a step if the newer one is complete, else restore it."""
    final = aside.removeprefix(_ASIDE)
    exists = final in storage.list()
    if exists and not verify_checkpoint(storage.below(final)):
        storage.delete(aside)
        return
    if exists:
        storage.delete(final)
    _restore_aside(storage, aside)


def _restore_aside(storage: Storage, aside: str) -> None:
    if aside in storage.list():
        storage.publish(aside, aside.removeprefix(_ASIDE))


@contextmanager
def _explain_disk_errors(storage: Storage, snapshot: Snapshot) -> Iterator[None]:
    """Turn an `OSError` into a `CheckpointError` that names the checkpoint which is left."""
    try:
        yield
    except OSError as error:
        space = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            free = storage.free_bytes()
            known = "" if free is None else f", {free:,} free"
            space = f" ({snapshot.size:,} bytes needed{known})"
        left = "earlier ones are still there"
        if not stores_once(storage):  # which does not answer
            names = [*list_steps(storage).values()]
            left = f"'{names[-1]}' is still there" if names else "there is no earlier one"
        raise CheckpointError(
            f"checkpoint of step {snapshot.step} could not be written to '{storage}': "
            f"{error.strerror}{space}; {left}"
        ) from error
