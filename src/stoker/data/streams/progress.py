"""A progress bar while files are indexed."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

_SECONDS = 1.0
"""A bar appears if indexing takes longer."""


@contextmanager
def indexing_bar() -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function that takes the bytes scanned so far and in total, and shows a bar.

    Without a terminal there is none.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    began = monotonic()
    columns = ("indexing", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=False) as bar:
        task = bar.add_task("indexing", total=None, visible=False)

        def show(done: int, total: int) -> None:
            if monotonic() - began > _SECONDS:
                bar.update(task, completed=done, total=total, visible=True)

        yield show
