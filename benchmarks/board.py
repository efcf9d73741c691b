"""Measure how fast the board is with 5,000,000 points in a run, and with 200 runs.

    python benchmarks/board.py

Every figure is the median of several requests over loopback to the real server. The exit code is 1
if opening a run takes more than 300 ms or a zoom more than 150 ms, with a warm index.
"""

import argparse
import contextlib
import http.client
import json
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from urllib.parse import urlencode

import numpy as np
import uvicorn

from stoker.board.app import make_app
from stoker.board.runs import Runs
from stoker.board.serve import bind

NAMES = ("train/loss", "lr", "time/step", "time/data", "grad_norm")


def write_run(folder: Path, rows: int) -> None:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("optimizer:\n  lr: 0.1\nrun:\n  epochs: 10\n")
    noise = np.random.default_rng(0).standard_normal((rows, len(NAMES))) / 10
    with (folder / "metrics.jsonl").open("w") as out:
        for step in range(rows):
            head = {"step": step, "epoch": step * 10 // rows, "samples": 32 * step}
            numbers = (noise[step] + 100 / (step + 100)).tolist()
            scalars = dict(zip(NAMES, numbers, strict=True))
            out.write(json.dumps(head | {"time": 1.79e9 + step / 10} | scalars) + "\n")


@contextlib.contextmanager
def served(root: Path, cache: Path) -> Iterator[int]:
    at, runs = bind("127.0.0.1", 0), Runs(root, cache)
    app = make_app(runs, stopping=lambda: server.should_exit)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [at]})
    thread.start()
    while not server.started:
        pass
    yield at.getsockname()[1]
    server.should_exit = True
    thread.join()


def get(port: int, call: str, query: dict[str, object] | None = None) -> dict[str, object]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", f"/api/{call}?{urlencode(query or {}, doseq=True)}")
    body = connection.getresponse().read()
    connection.close()
    return json.loads(body)


def open_run(port: int, name: str) -> None:
    """Request what the page needs to show a run: its details and all its curves."""
    get(port, "run", {"run": name})
    get(port, "series", {"run": name, "name": NAMES, "points": 1500})


def milliseconds(call, times: int = 9) -> float:
    times_ms = []
    for _ in range(times):
        began = perf_counter()
        call()
        times_ms.append(1000 * (perf_counter() - began))
    return statistics.median(times_ms)


def until_read(port: int, name: str) -> None:
    while get(port, "run", {"run": name})["read"] < 1:
        pass


def large(root: Path, cache: Path, rows: int) -> dict[str, float]:
    found = {}
    with served(root, cache) as port:
        found["first answer, nothing read yet"] = milliseconds(lambda: open_run(port, "large"), 1)
        began = perf_counter()
        until_read(port, "large")
        found["read everything, once, in the background"] = 1000 * (perf_counter() - began)
        found["open the run"] = milliseconds(lambda: open_run(port, "large"))
        windows = np.random.default_rng(1).uniform(0, 0.9, 30) * rows

        def zoom() -> None:
            start = windows[zoom.count % 30]
            zoom.count += 1
            query = {"run": "large", "name": NAMES, "points": 1500}
            get(port, "series", query | {"from": start, "to": start + rows / 10})

        zoom.count = 0
        found["zoom, all curves"] = milliseconds(zoom, 30)
        by_time = {"run": "large", "name": NAMES, "points": 1500, "x": "time"}
        found["another x axis"] = milliseconds(lambda: get(port, "series", by_time), 1)
    with served(root, cache) as port:
        found["open it after a restart, index in the cache"] = milliseconds(
            lambda: open_run(port, "large"), 1
        )
    return found


def many(root: Path, cache: Path, count: int) -> dict[str, float]:
    found = {}
    with served(root, cache) as port:
        began = perf_counter()
        while any(run["read"] < 1 or not run["rows"] for run in get(port, "runs")["runs"]):
            pass
        found[f"{count} runs, first complete list"] = 1000 * (perf_counter() - began)
        found[f"{count} runs, list"] = milliseconds(lambda: get(port, "runs"))
        found[f"{count} runs, table"] = milliseconds(lambda: get(port, "table"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rows", type=int, default=1000, help="rows in each of the runs")
    options = parser.parse_args()
    rows = options.points // len(NAMES)
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        write_run(base / "one" / "large", rows)
        size = (base / "one" / "large" / "metrics.jsonl").stat().st_size
        print(f"a run of {rows:,} rows, {rows * len(NAMES):,} points, {size / 1e6:.0f} MB")
        found = large(base / "one", base / "cache", rows)
        for number in range(options.runs):
            write_run(base / "many" / f"run-{number:03}", options.rows)
        found |= many(base / "many", base / "cache", options.runs)
    for action, duration in found.items():
        print(f"{action:<50} {duration:9,.1f} ms")
    return int(found["open the run"] > 300 or found["zoom, all curves"] > 150)


if __name__ == "__main__":
    sys.exit(main())
