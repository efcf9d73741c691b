"""Measure what a checkpoint into an object store costs a run: the stall, and memory.

    python benchmarks/stores.py [--megabytes 400]

The stall is the time that `save` takes, compared with one copy of the same state in memory, in one
process, alternating, while the checkpoint before is uploaded. Memory is the peak above what the
state itself and the program need.
"""

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from stoker.checkpoint import Checkpoints  # noqa: E402
from stoker.storage import working_folder  # noqa: E402
from support.stores import S3Server, environment  # noqa: E402

URL = "s3://bucket/benchmark/checkpoints"


class Peak:
    """The largest private memory of this process, sampled in a thread."""

    def __init__(self) -> None:
        self.bytes, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(0.02):
            self.bytes = max(self.bytes, private_bytes())


def private_bytes() -> int:
    found = psutil.Process().memory_info()
    return int(found.rss - found.shared)


def measure(state: dict[str, torch.Tensor], rounds: int) -> tuple[float, float, int]:
    """Return the median seconds of a copy and of a save, and the peak of extra memory."""
    target = {name: one.clone() for name, one in state.items()}
    copies, stalls, during = [], [], []
    with Checkpoints(working_folder(URL), keep=1) as checkpoints:
        checkpoints.save(0, {"model": state}, wait=True)  # makes the buffers
        for step in range(1, rounds + 1):
            for one in state.values():
                one.add_(1)
            upload = threading.Thread(target=checkpoints.upload, args=(step - 1,))
            upload.start()
            time.sleep(0.2)  # it has begun to send
            began = time.perf_counter()
            for name, one in state.items():
                target[name].copy_(one)
            copies.append(time.perf_counter() - began)
            began = time.perf_counter()
            checkpoints.save(step, {"model": state})
            stalls.append(time.perf_counter() - began)
            during.append(upload.is_alive())
            checkpoints.wait()
            upload.join()
    assert all(during), "an upload was over before the save: use a larger state"
    del target
    before = private_bytes()
    with Peak() as peak, Checkpoints(working_folder(URL), keep=1) as checkpoints:
        checkpoints.save(rounds + 1, {"model": state}, wait=True)
        checkpoints.upload(rounds + 1)
    return statistics.median(copies), statistics.median(stalls), peak.bytes - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    state = {f"layer.{n}": torch.randn(5_000_000) for n in range(options.megabytes // 20)}
    size = sum(one.nbytes for one in state.values())
    server = S3Server()
    os.environ |= environment(server.url)
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["STOKER_CACHE"] = folder
            copy, stall, extra = measure(state, options.rounds)
    finally:
        server.kill()
    print(f"state {size / 1e6:.0f} MB, medians of {options.rounds}")
    print(f"one copy in memory {copy * 1e3:.0f} ms, stall of a save {stall * 1e3:.0f} ms")
    print(f"ratio {stall / copy:.2f} (at most 1.3)")
    print(
        f"extra memory {extra / 1e6:.0f} MB: a copy of the state and {(extra - size) / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    main()
