"""`DeviceStats`: how busy the process and its accelerator are."""

import os
from time import perf_counter, process_time
from typing import Any

import torch

from stoker.core.every import Every
from stoker.hooks.base.hook import Priority
from stoker.hooks.base.periodic import Periodic
from stoker.run import Run


class DeviceStats(Periodic):
    """Report the load of the processor and the memory in use, and those of the accelerator.

    ``device/cpu`` is the share of one core that the process used since the last report, in
    percent; ``device/ram`` its memory in GiB. On an accelerator, ``device/memory`` and
    ``device/memory_peak`` are what torch has allocated, in GiB. `Memory` reports peaks alone.

    Args:
        every: How often to report.
    """

    observes = True
    priority = Priority.MEASURE
    same_on_all_ranks = True
    produces = ("device/cpu", "device/ram", "device/memory", "device/memory_peak")

    def __init__(self, every: int | str | Every = "50st") -> None:
        super().__init__(every)
        self._since: tuple[float, float] | None = None

    def before_train(self, run: Run) -> None:
        """Start counting."""
        super().before_train(run)
        self._since = (perf_counter(), process_time())

    def act(self, run: Run) -> None:
        """Report."""
        for name, value in self._read(run.engine.device).items():
            run.events.put_scalar(name, value)

    def _read(self, device: torch.device) -> dict[str, float]:
        found: dict[str, float] = {}
        now, since = (perf_counter(), process_time()), self._since
        if since is not None and now[0] > since[0]:
            found["device/cpu"] = 100 * (now[1] - since[1]) / (now[0] - since[0])
        self._since = now
        if (memory := resident_gib()) is not None:
            found["device/ram"] = memory
        if device.type != "cpu":  # untested: CI has no accelerator
            accelerator: Any = torch.accelerator
            found["device/memory"] = accelerator.memory_allocated(device) / 2**30
            found["device/memory_peak"] = accelerator.max_memory_allocated(device) / 2**30
        return found


def resident_gib() -> float | None:
    """Return the memory of this process in GiB, or None if the system does not show it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except OSError:  # not Linux
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30
