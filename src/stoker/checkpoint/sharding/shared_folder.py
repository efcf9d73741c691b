"""Check that all ranks reach the same folder, before anything depends on it."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from stoker.checkpoint.sharding.rank_channel import RankChannel
from stoker.core.errors import CheckpointError
from stoker.storage import Storage

PROBE = ".probe-"
_PATIENCE = 30.0
"""Seconds for which another host may still be shown an older listing of a network folder."""


def check_shared(storage: Storage, channel: RankChannel) -> None:
    """Raise a `CheckpointError` on all ranks if one does not see a file that rank 0 writes."""
    with _probe(storage, channel) as (is_seen, main_host), channel.fail_together():
        if not is_seen:
            raise CheckpointError(
                f"rank {channel.rank} on {socket.gethostname()} (in '{os.getcwd()}') does not see "
                f"the folder '{storage}' of rank 0 on {main_host}: all ranks need one shared "
                "folder, so set run_dir to an absolute path on a disk that every node mounts, or "
                "to the URL of an object store"
            )


def is_shared(storage: Storage, channel: RankChannel) -> bool:
    """Return whether all ranks see a file that rank 0 writes."""
    with _probe(storage, channel) as (is_seen, _):
        return all(channel.all_gather(is_seen))


@contextmanager
def _probe(storage: Storage, channel: RankChannel) -> Iterator[tuple[bool, str]]:
    """Write a file on rank 0; yield whether this rank sees it, and the host of rank 0."""
    host, name = socket.gethostname(), PROBE + os.urandom(8).hex()
    if channel.world_size == 1:
        yield True, host
        return
    with channel.fail_together():
        if channel.rank == 0:
            storage.write(name, [b""])
    main_host, name = channel.all_gather([host, name])[0]
    deadline = time.monotonic() + (_PATIENCE if host != main_host else 0.0)
    while (is_seen := storage.size(name) is not None) is False and time.monotonic() < deadline:
        time.sleep(0.2)
    yield is_seen, main_host
    if channel.rank == 0:
        with suppress(OSError):  # `clean` removes it at the next start
            storage.delete(name)
