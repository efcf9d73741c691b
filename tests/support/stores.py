"""A real S3 server, and a proxy before it that fails in the ways that networks do."""

import hmac
import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

KEY, SECRET = "AKIATESTONLY", "a-secret-that-must-not-be-printed"
BUCKET = "bucket"
_TESTS = Path(__file__).parents[1]
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (  # the same for every installation of the emulator, and in its documentation
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


class S3Server:
    """A server in a process of its own, which keeps its objects in memory."""

    def __init__(self) -> None:
        self.port = _free_port()
        self.start()

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def start(self) -> None:
        self._process = subprocess.Popen(
            self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=_TESTS
        )
        self._create_bucket()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _create_bucket(self) -> None:
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
                connection.request("PUT", f"/{BUCKET}")
                assert connection.getresponse().status == 200
                return
            except ConnectionError:
                assert self._process.poll() is None, "the server has ended"
                time.sleep(0.1)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class DurableS3Server(S3Server):
    """The same, with its objects in a folder: it can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        super().__init__()

    def command(self) -> list[str]:
        return [sys.executable, "-m", "support.durable_s3", str(self.port), str(self._folder)]

    def die_soon(self, random: Random) -> None:
        """Let the server kill itself at one of the next requests, before or after it acts."""
        request = int((self._folder / "count").read_text()) + random.randrange(5, 40)
        replace_text(self._folder / "die", f"{request} {random.choice(['before', 'after'])}")

    @property
    def is_dead(self) -> bool:
        return self._process.poll() is not None


def replace_text(path: Path, text: str) -> None:
    """Write a file at once, so that another process never reads half of it."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def environment(endpoint: str) -> dict[str, str]:
    """Return the variables with which tools of S3 find a server."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }


Fault = Callable[[str, str], str | None]
"""Returns, for the method and path of a request, what happens to it: None forwards it."""


class Proxy:
    """Forwards requests to a server; `fault` decides which fail, and how.

    "503" answers so; "drop" closes the connection; "lose" forwards the request and loses the
    answer; "cut" forwards half of the body; "slow" waits first.
    """

    def __init__(self, server: S3Server) -> None:
        self.fault: Fault = lambda method, path: None
        self.unconditional = False  # whether conditions are taken out of requests
        self.requests: list[tuple[str, str]] = []
        self.sent = 0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                proxy.handle(self, server.port)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def handle(self, request: BaseHTTPRequestHandler, port: int) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        self.requests.append((request.command, request.path))
        fault = self.fault(request.command, request.path)
        if fault == "503":
            request.send_response(503, "Slow Down")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        if fault == "drop":
            request.close_connection = True
            return
        if fault == "slow":
            time.sleep(0.2)
        headers = dict(request.headers)
        if self.unconditional:
            headers = {n: v for n, v in headers.items() if not n.lower().startswith("if-")}
        if fault == "cut":
            body = body[: len(body) // 2]
            headers["Content-Length"] = str(len(body))
        self.sent += len(body)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        connection.request(request.command, request.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        if fault == "lose":
            request.close_connection = True
            return
        request.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "date", "server"):
                request.send_header(name, value)
        request.end_headers()
        request.wfile.write(data)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def use(monkeypatch, endpoint: str, cache: object) -> None:
    """Let this process use a server, and a cache of its own."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in environment(endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("STOKER_CACHE", str(cache))


class Azurite:
    """Microsoft's emulator of Azure Blob Storage, installed by npm into a folder."""

    def __init__(self, folder: Path) -> None:
        program = folder / "node_modules/.bin/azurite-blob"
        if not program.exists():
            install = ["npm", "install", "--silent", "--no-audit", "--prefix", str(folder)]
            subprocess.run([*install, "azurite"], check=True)
        self.port = _free_port()
        command = [
            str(program),
            "--inMemoryPersistence",
            "--skipApiVersionCheck",
            "--silent",
            "--disableTelemetry",
        ]
        self._process = subprocess.Popen([*command, "--blobPort", str(self.port)])
        self._create_container()

    def _create_container(self) -> None:
        # Azurite accepts a container from anyone who signs with its published key
        date = formatdate(usegmt=True)
        text = f"PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{date}\nx-ms-version:2023-11-03\n"
        text += f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{BUCKET}\nrestype:container"
        signed = hmac.digest(b64decode(AZURE_KEY), text.encode(), "sha256")
        headers = {
            "x-ms-date": date,
            "x-ms-version": "2023-11-03",
            "Authorization": f"SharedKey {AZURE_ACCOUNT}:{b64encode(signed).decode()}",
            "Content-Length": "0",
        }
        path = f"/{AZURE_ACCOUNT}/{BUCKET}?restype=container"
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
                connection.request("PUT", path, headers=headers)
                answer = connection.getresponse()
                assert answer.status == 201, answer.read()
                return
            except ConnectionError:
                assert self._process.poll() is None, "Azurite has ended"
                time.sleep(0.1)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def azure_environment(server: Azurite) -> dict[str, str]:
    """Return the variables with which tools of Azure find the emulator."""
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
        "AZURE_ENDPOINT": f"http://127.0.0.1:{server.port}/{AZURE_ACCOUNT}",
    }


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
