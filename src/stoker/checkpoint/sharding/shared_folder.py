"""Check that all ranks reach the same folder, before anything depends on it."""

import os
import socket
import time
from contextlib import suppress

from stoker.checkpoint.sharding.rank_channel import RankChannel
from stoker.core.errors import CheckpointError
from stoker.storage import Storage

PROBE = ".probe-"
_PATIENCE = 30.0
"""Seconds for which another host may still be shown an older listing of a network folder."""


def check_shared(storage: Storage, channel: RankChannel) -> None:
    """Raise a `CheckpointError` on all ranks if one does not see a file that rank 0 writes."""
    if channel.world_size == 1:
        return
    host, name = socket.gethostname(), PROBE + os.urandom(8).hex()
    with channel.fail_together():
        if channel.rank == 0:
            storage.write(name, [b""])
    main_host, name = channel.all_gather([host, name])[0]
    with channel.fail_together():
        deadline = time.monotonic() + (_PATIENCE if host != main_host else 0.0)
        while storage.size(name) is None:
            if time.monotonic() >= deadline:
                raise CheckpointError(
                    f"rank {channel.rank} on {host} (in '{os.getcwd()}') does not see the folder "
                    f"'{storage}' of rank 0 on {main_host}: all ranks need one shared folder, so "
                    "set run_dir to an absolute path on a disk that every node mounts"
                )
            time.sleep(0.2)
    if channel.rank == 0:
        with suppress(OSError):  # `clean` removes it at the next start
            storage.delete(name)
