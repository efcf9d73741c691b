"""The driver's side of a worker process."""

import json
import os
import pty
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def cpu_seconds_of_ended() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Started:
    """A process with a fake terminal, so that progress bars are drawn."""

    def __init__(self, command: list[str], **options: Any) -> None:
        ours, theirs = pty.openpty()
        paths = [str(HERE.parent.parent / "src"), os.environ.get("PYTHONPATH", "")]
        self.began = time.time()
        self._processor_before = cpu_seconds_of_ended()
        self._process = subprocess.Popen(
            command,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(path for path in paths if path),
                "PYTHONDONTWRITEBYTECODE": "",
                "TERM": "xterm",
                "COLUMNS": "100",
                "KERAS_BACKEND": "torch",
                "TOKENIZERS_PARALLELISM": "false",
                "HF_HUB_OFFLINE": "1",
            },
            **options,
        )
        os.close(theirs)
        self.printed: deque[bytes] = deque(maxlen=20)
        threading.Thread(target=self._drain, args=(ours,), daemon=True).start()

    def wait(self, seconds: float) -> int | None:
        """Return its exit code, or None if it had to be killed."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def processor(self) -> float:
        """Return its CPU seconds, once it has ended, if no other process has ended since."""
        return cpu_seconds_of_ended() - self._processor_before

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        if self.alive:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def show(self) -> None:
        """Print the end of its output."""
        output = b"".join(self.printed).decode(errors="replace")
        print(f"\n{output[-3000:]}", file=sys.stderr)

    def _drain(self, terminal: int) -> None:
        try:
            while part := os.read(terminal, 1 << 16):
                self.printed.append(part)
        except OSError:
            pass  # the other side was closed
        os.close(terminal)


class Worker(Started):
    """A process that imports one peer and answers requests."""

    def __init__(self, python: Path | str, module: str, timeout: float = 300.0) -> None:
        self.timeout = timeout
        self._answers, descriptor = os.pipe()
        self._left = b""
        command = [str(python), str(HERE / "worker.py"), module, str(descriptor)]
        super().__init__(command, stdin=subprocess.PIPE, pass_fds=[descriptor])
        os.close(descriptor)

    def hello(self) -> dict[str, Any]:
        """Return the time of importing the peer, or the error."""
        return self._answer()

    def request(self, **request: Any) -> dict[str, Any]:
        """Send a request and return the answer, which may be an error."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return {"error": "its process has ended"}
        return self._answer()

    def end(self) -> float:
        """Let the process end, and return the time when it has."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.wait(20)
        ended = time.time()
        os.close(self._answers)
        return ended

    def _answer(self) -> dict[str, Any]:
        until = time.monotonic() + self.timeout
        while b"\n" not in self._left:
            ready, _, _ = select.select([self._answers], [], [], until - time.monotonic())
            if not ready:
                self.kill()
                return {"error": f"no answer within {self.timeout:.0f} s"}
            part = os.read(self._answers, 1 << 16)
            if not part:
                return {"error": "its process has ended"}
            self._left += part
        line, self._left = self._left.split(b"\n", 1)
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            self.show()
        return found
