"""Fixtures of an S3 server, for all tests of a file, and a place in it for each of them."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from support.stores import BUCKET, Proxy, S3Server, use

_NAMES = count()


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    """A server; its objects are in memory."""
    found = S3Server()
    yield found
    found.kill()


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    """A proxy before the server, which fails when a test lets it."""
    found = Proxy(s3_server)
    yield found
    found.close()


@pytest.fixture
def url(proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty place in the store, with an empty cache on the local disk."""
    use(monkeypatch, proxy.url, tmp_path / "cache")
    yield f"s3://{BUCKET}/runs/run-{next(_NAMES)}"
    proxy.fault = lambda method, path: None
