"""What the fork server of a test run imports once, for all processes that are forked from it."""

import multiprocessing.forkserver as forkserver
from importlib import import_module

_ensure_running = forkserver.ForkServer.ensure_running


def ensure_running(self: forkserver.ForkServer) -> None:
    """Let a forked process use the server that it came from, and not start one of its own."""
    if self._forkserver_alive_fd is None:
        _ensure_running(self)


forkserver.ForkServer.ensure_running = ensure_running
forkserver.ensure_running = forkserver._forkserver.ensure_running  # imported by name below

for name in (
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "stoker.build",
    "stoker.checkpoint.sharding.planner",
    "stoker.cli.train",
    "stoker.launch.agent",
    "stoker.trainer",
):
    import_module(name)
