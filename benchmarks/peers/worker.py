"""Run one peer in its own process, and answer the requests of the driver with numbers.

    python worker.py NAME ANSWERS

Requests are lines of JSON on standard input; answers are lines of JSON to the file descriptor
ANSWERS. Output of the peer goes to the output of the process.
"""

import contextlib
import gc
import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CORES = os.sched_getaffinity(0)


def load(name: str) -> tuple[Any, dict[str, Any]]:
    """Return the module of the peer, and the time to import torch and then the peer."""
    began = time.perf_counter()
    import torch
    import torch.utils.data

    torch.set_num_threads(1)
    has_torch = time.perf_counter()
    peer = importlib.import_module(f"loops.{name}")
    seconds = {"torch": has_torch - began, "peer": time.perf_counter() - has_torch}
    return peer, {"import": seconds}


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Change into an empty folder, and remove it with everything that a peer leaves behind."""
    home = os.getcwd()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(home)


def answer(peer: Any, request: dict[str, Any]) -> dict[str, Any]:
    import measure

    cores = request.pop("core", None)
    os.sched_setaffinity(0, CORES if cores is None else {cores})
    try:
        with scratch() as folder:
            return measure.REQUESTS[request.pop("what")](peer, folder, **request)
    except measure.AbsentError as absent:
        return {"absent": str(absent)}
    except BaseException as error:
        traceback.print_exc()
        if isinstance(error, KeyboardInterrupt):
            raise
        return {"error": measure.in_short(error)}
    finally:
        gc.collect()


def main() -> None:
    name, descriptor = sys.argv[1], int(sys.argv[2])
    answers = os.fdopen(descriptor, "w")

    def send(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        peer, imported = load(name)
    except Exception as error:
        traceback.print_exc()
        send({"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"})
        return
    send(imported)
    for line in sys.stdin:
        send(answer(peer, json.loads(line)))


if __name__ == "__main__":
    main()
