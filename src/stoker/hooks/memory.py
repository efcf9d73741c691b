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


def describe_memory(device: torch.device, *, host: bool = True) -> str:
    """Return the memory in use and its peak since the last call, and the peak of the host."""
    parts = []
    if device.type != "cpu":  # untested: CI has no accelerator
        stats = torch.accelerator.memory_stats(device)
        for name in ("allocated", "reserved"):
            now, most = (stats[f"{name}_bytes.all.{k}"] / 2**20 for k in ("current", "peak"))
            parts.append(f"{name} {now:.1f} MB, at most {most:.1f} MB")
        torch.accelerator.reset_peak_memory_stats(device)
    peak = host_peak_gib()
    if peak is not None and (host or not parts):
        parts.append(f"host at most {peak * 1024:.1f} MB")
    return f"memory {', '.join(parts) or 'unknown'}"


def host_peak_gib() -> float | None:
    """Return the peak resident memory of this process in GiB, or None if it is not available."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)
