"""Stores and trainings that are killed and fail at any moment: nothing is lost or half visible.

``STOKER_STORE_KILLS=30`` repeats each kind of kill that often (`make store-kills`).
"""

import os
import time
from itertools import count, cycle
from pathlib import Path
from random import Random

import pytest

from stoker.checkpoint import Checkpoints
from support.server import Python
from support.stored_run import train
from support.stores import BUCKET, DurableS3Server, use

pytestmark = [pytest.mark.process, pytest.mark.slow]
pytest_plugins = ["support.store_fixtures"]

KILLS = int(os.environ.get("STOKER_STORE_KILLS", "2"))
TESTS = Path(__file__).parents[1]
NAMES = count()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return train(tmp_path_factory.mktemp("plain") / "run", 2)


def start(url, *options, **variables):
    words = ("-m", "support.stored_run", url, "2", *options)
    return Python(*words, env={**os.environ, **variables}, cwd=TESTS)


def check_visible(url):
    """Check that what is listed is complete, unless the training has just removed it."""
    checkpoints = Checkpoints(f"{url}/checkpoints")
    for path in checkpoints.list():
        faults = checkpoints.verify(path)
        assert not faults or path not in Checkpoints(f"{url}/checkpoints").list(), faults


def test_a_server_that_is_killed_again_and_again_loses_nothing(tmp_path, monkeypatch, expected):
    random, kills = Random(7), 0
    server = DurableS3Server(tmp_path)
    use(monkeypatch, server.url, tmp_path / "cache")
    try:
        while kills < KILLS:
            url = f"s3://{BUCKET}/runs/run-{next(NAMES)}"
            server.die_soon(random)
            training = start(url, STOKER_CACHE=str(tmp_path / url[-6:]))
            while training.poll() is None:
                time.sleep(0.05)
                if server.is_dead:
                    kills += 1
                    server.start()
                    check_visible(url)
                    if kills < KILLS:
                        server.die_soon(random)
            out, err = training.communicate()
            assert out.strip() == expected, err
            check_visible(url)
            assert Checkpoints(f"{url}/checkpoints").list()[-1].name == "step-00000012"
    finally:
        server.kill()


def test_a_training_with_a_backlog_of_uploads_is_killed_and_resumed(
    tmp_path, monkeypatch, proxy, expected
):
    random, killed = Random(3), 0
    use(monkeypatch, proxy.url, tmp_path / "cache")
    while killed < KILLS:
        url = f"s3://{BUCKET}/runs/run-{next(NAMES)}"
        proxy.fault = lambda method, path: "slow" if method == "PUT" else None
        for _ in range(3):
            cache = tmp_path / f"{url[-2:]}-{random.randrange(2)}"  # this machine, or another one
            before, limit = len(proxy.requests), random.randrange(8, 50)
            training = start(url, "--fast", STOKER_CACHE=str(cache))
            while training.poll() is None and len(proxy.requests) < before + limit:
                time.sleep(0.01)
            training.kill()
            killed += training.wait() == -9
            check_visible(url)
        proxy.fault = lambda method, path: None
        out, err = start(url, "--fast", STOKER_CACHE=str(tmp_path / "last")).communicate()
        assert out.strip() == expected, err
        assert Checkpoints(f"{url}/checkpoints").list()[-1].name == "step-00000012"


@pytest.mark.parametrize("nth", [3, 7])
def test_every_nth_request_fails_in_another_way(tmp_path, monkeypatch, proxy, expected, nth):
    use(monkeypatch, proxy.url, tmp_path / "cache")
    requests, kinds = count(1), cycle(["503", "drop", "cut", "lose", "slow"])

    def fault(method, path):
        if next(requests) % nth:
            return None
        kind = next(kinds)
        is_part = method == "PUT" and "/objects/" in path
        return "drop" if kind == "cut" and not is_part else kind

    proxy.fault = fault
    url = f"s3://{BUCKET}/runs/run-{next(NAMES)}"
    try:
        assert train(url, 2) == expected
    finally:
        proxy.fault = lambda method, path: None
    check_visible(url)
    assert Checkpoints(f"{url}/checkpoints").list()[-1].name == "step-00000012"
