"""Run folders as training leaves them, and a board that serves them."""

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import xxhash

from stoker.board.app import make_app
from stoker.board.runs import Runs
from stoker.board.serve import _Server, bind

BEGAN = 1_790_000_000.0


def rows(count: int, start: int = 0, **more: float) -> str:
    lines = []
    for step in range(start + 1, start + count + 1):
        head = {"step": step, "epoch": step // 10, "samples": step * 32, "time": BEGAN + step}
        lines.append(json.dumps(head | {"train/loss": 1 / step, "lr": 0.1, **more}) + "\n")
        if step % 10 == 0:
            lines.append(json.dumps(head | {"val/accuracy": 1 - 1 / step}) + "\n")
    return "".join(lines)


def make_run(root: Path, name: str, count: int = 20, config: str = "", log: str | None = None):
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(rows(count))
    (folder / "config.yaml").write_text(config or "optimizer:\n  lr: 0.1\nrun:\n  epochs: 2\n")
    (folder / "env.json").write_text('{"python": "3.11", "system": {"host": "here"}}\n')
    default = (
        f"epoch {count // 10}/2  step {count}  train/loss 0.05  1.0 s\n{said('finished', count)}"
    )
    stamp = "2026-01-01 00:00:00 INFO "
    (folder / "log.txt").write_text(
        "".join(f"{stamp}{line}\n" for line in default.splitlines()) if log is None else log
    )
    return folder


def said(reason: str, step: int = 20) -> str:
    return f"{reason} (step {step})"


def make_checkpoint(run: Path, step: int, data: bytes = b"weights") -> Path:
    from stoker.checkpoint.format.manifest import Manifest
    from stoker.storage import FileRecord

    folder = run / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(data)
    record = FileRecord(len(data), xxhash.xxh3_128_hexdigest(data))
    info = {"metrics": {"val/accuracy": 0.5}}
    text = Manifest(step, info, 1, {"model.safetensors": record}).text()
    (folder / "MANIFEST.json").write_text(text)
    return folder


class Served:
    """A board at work, and a plain client for it."""

    def __init__(self, port: int, root: Path) -> None:
        self.port, self.address, self.root = port, f"http://127.0.0.1:{port}/", root

    def ask(self, target: str, method: str = "GET", **headers: str) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        with contextlib.closing(connection):
            connection.putrequest(method, target, skip_host="Host" in headers)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def get(self, call: str, **asked: Any) -> Any:
        status, _, body = self.ask(f"/api/{call}?{urlencode(asked, doseq=True)}")
        assert status == 200, body
        return json.loads(body)

    def events(self) -> Iterator[dict[str, Any]]:
        """What the stream of the board tells; closed when the iterator is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        with contextlib.closing(connection):
            connection.request("GET", "/api/stream")
            for line in connection.getresponse():
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))


@contextlib.contextmanager
def served(root: Path, token: str | None = None, port: int = 0) -> Iterator[Served]:
    import uvicorn

    ready = threading.Event()
    at = bind("127.0.0.1", port)
    app = make_app(Runs(root), token, lambda: server.should_exit)
    settings = uvicorn.Config(app, log_level="critical", ws="none", timeout_graceful_shutdown=2)
    server = _Server(settings, ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [at]}, daemon=True)
    thread.start()
    assert ready.wait(600)
    try:
        yield Served(at.getsockname()[1], root)
    finally:
        server.should_exit = True
        thread.join()
        at.close()
