"""`Memory`: peak memory of the host and the device."""

import sys

import torch

from stoker.hooks.base.hook import Hook, Priority
from stoker.run import Run


class Memory(Hook):
    """Report peak memory in GiB after each epoch.

    ``memory/host`` is the peak of the process so far. ``memory/device``, reported on an
    accelerator, is the peak of the epoch.
    """

    observes = True
    priority = Priority.MEASURE
    same_on_all_ranks = True
    produces = ("memory/host", "memory/device")

    def after_epoch(self, run: Run) -> None:
        """Record the peaks."""
        host = host_peak_gib()
        if host is not None:
            run.record("memory/host", host)
        device = run.engine.device
        if device.type != "cpu":  # untested: CI has no accelerator
            peak = torch.accelerator.max_memory_allocated(device)
            run.record("memory/device", peak / 2**30)
            torch.accelerator.reset_peak_memory_stats(device)


def host_peak_gib() -> float | None:
    """Return the peak resident memory of this process in GiB, or None if it is not available."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)
