"""A real pseudo-terminal with a terminal emulator behind it, in place of standard error."""

import fcntl
import os
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyte

_MARK = b"\x1b]0;%d\x07"  # sets the title, which is not on the screen


class PseudoTerminal:
    """What a person sees. `screen` waits for everything printed before it, not for a time."""

    def __init__(self, columns: int, lines: int = 40) -> None:
        self._pyte = pyte.Screen(columns, lines)
        self._emulator = pyte.ByteStream(self._pyte)
        self._master, slave = os.openpty()
        self.stream = os.fdopen(slave, "w", encoding="utf-8", buffering=1)
        self._marks = 0
        self._seen = threading.Event()
        self.raw = b""
        self._set_size(columns, lines)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, columns: int, lines: int = 40) -> None:
        """Give the window another size, after what was printed before is on the screen."""
        self.screen()
        self._set_size(columns, lines)
        self._pyte.resize(lines, columns)

    def _set_size(self, columns: int, lines: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self.stream.fileno(), termios.TIOCSWINSZ, size)

    def screen(self) -> list[str]:
        """The lines that are on the screen now, without empty ones."""
        self._marks += 1
        self._seen.clear()
        os.write(self.stream.fileno(), _MARK % self._marks)
        assert self._seen.wait(600)
        return [line.rstrip() for line in self._pyte.display if line.strip()]

    def close(self) -> None:
        """Close both sides."""
        self.stream.close()
        self._reader.join()
        os.close(self._master)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:  # the other side is closed
                return
            self.raw += data
            self._emulator.feed(data)
            if self._marks and self.raw.endswith(_MARK % self._marks):
                self._seen.set()


@contextmanager
def pseudo_terminal(monkeypatch, columns: int = 80, **environment: str) -> Iterator[PseudoTerminal]:
    """Within it, standard error is a terminal of so many columns."""
    with monkeypatch.context() as patch:
        for name in ("NO_COLOR", "COLUMNS", "LINES", "CI", "TMUX", "VTE_VERSION", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        for name, value in ({"TERM": "xterm-256color"} | environment).items():
            patch.setenv(name, value)
        terminal = PseudoTerminal(columns)
        patch.setattr(sys, "stderr", terminal.stream)
        try:
            yield terminal
        finally:
            terminal.close()
