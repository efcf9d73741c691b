"""Break lines between words where a terminal would break them within."""

import os
import textwrap
from typing import Any

_NARROWEST = 20


def wrapped(text: str, stream: Any) -> str:
    """Return a text with its long lines broken for the terminal behind a stream.

    A text for a file or a pipe stays as it is, so that programs find complete lines in it. A word
    that is longer than a line, such as a path, is not broken.
    """
    columns = _columns(stream)
    if columns < _NARROWEST or len(text) < columns:
        return text
    return "\n".join(_wrap(line, columns) for line in text.split("\n"))


def _wrap(line: str, columns: int) -> str:
    if len(line) < columns or line[:1].isspace():  # a row of a table stays one
        return line
    return textwrap.fill(
        line,
        columns - 1,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    )


def _columns(stream: Any) -> int:
    """Return the width of the terminal behind a stream; 0 if there is none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError, AttributeError):
        return 0
