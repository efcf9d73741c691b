"""``python -m support.durable_s3 PORT FOLDER``: moto's S3 server, which survives a SIGKILL.

moto keeps its objects in memory. This one appends each request that changes something to a journal
and repeats the journal when it starts. Before each request it reads ``FOLDER/die``: ``"12 before"``
kills the server at the 12th request, before it acts on it; ``"12 after"`` when it has acted and not
yet answered. ``FOLDER/count`` has the number of requests since the start.
"""

import base64
import json
import os
import signal
import sys
import threading
from pathlib import Path

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
from werkzeug.test import Client, EnvironBuilder
from werkzeug.wrappers import Request

from support.stores import replace_text

_KEPT = ("content-type", "if-match", "if-none-match", "x-amz-copy-source")


class Durable:
    """The application of moto, with a journal."""

    def __init__(self, folder: Path) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self._folder, self._turn, self._count = folder, threading.Lock(), 0
        self._journal = folder / "journal"
        if self._journal.exists():
            client = Client(self._app)
            for line in self._journal.read_text().splitlines():
                method, url, headers, body = json.loads(line)
                client.open(_request(method, url, headers, base64.b64decode(body)))
        self._file = self._journal.open("a")

    def __call__(self, environ, start_response):
        request = Request(environ)
        body = request.get_data()
        with self._turn:
            self._count += 1
            replace_text(self._folder / "count", str(self._count))
            self._die("before")
            headers = {name: request.headers[name] for name in _KEPT if name in request.headers}
            builder = _request(request.method, request.full_path, dict(request.headers), body)
            answer = Client(self._app).open(builder)
            if request.method not in ("GET", "HEAD") and answer.status_code < 300:
                text = base64.b64encode(body).decode()
                self._file.write(
                    json.dumps([request.method, request.full_path, headers, text]) + "\n"
                )
                self._file.flush()
            self._die("after")
        return answer(environ, start_response)

    def _die(self, moment: str) -> None:
        wanted = self._folder / "die"
        if wanted.exists() and wanted.read_text() == f"{self._count} {moment}":
            wanted.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def _request(method: str, url: str, headers: dict[str, str], body: bytes) -> EnvironBuilder:
    headers = {n: v for n, v in headers.items() if n.lower() not in ("content-length", "host")}
    return EnvironBuilder(
        path=url, method=method, headers=headers, data=body, base_url="http://127.0.0.1"
    )


if __name__ == "__main__":
    run_simple("127.0.0.1", int(sys.argv[1]), Durable(Path(sys.argv[2])), threaded=True)
