"""Elastic runs: the others continue without a process that is lost, to the same bits.

``make kills`` ends rank 0 before more of the collectives, ``make elastic`` at random moments.
"""

import json
import os
import signal
import threading
from time import sleep

import pytest
from torch.distributed import HashStore

from stoker import launch
from stoker.core.membership import JobStore, Progress
from stoker.launch import RankFailed
from stoker.launch.elastic import _Reports
from stoker.launch.rank import result_of
from support.sample import sample
from support.tasks import elastic

pytestmark = [pytest.mark.process, pytest.mark.slow]


def rows(folder):
    """The lines of metrics.jsonl, without times."""
    found = []
    for line in (folder / "run" / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        found.append({n: v for n, v in row.items() if not n.startswith("time") and "/s" not in n})
    return found


def pids_at(folder, step):
    return sorted(int(path.name.split("-")[2]) for path in folder.glob(f"at-{step}-*"))


def signal_at(folder, count, step, pick, number):
    """When so many processes are at a step, send one of them a signal and let the others go on."""

    def wait():
        while len(pids_at(folder, step)) < count:
            sleep(0.01)
        os.kill(pick(pids_at(folder, step)), number)
        (folder / f"go-{step}").touch()

    threading.Thread(target=wait, daemon=True).start()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    return launch.run(elastic.train, folder, [], nproc=1), rows(folder)


@pytest.mark.parametrize(
    ("number", "pick"),
    [(signal.SIGKILL, min), (signal.SIGTERM, max), (signal.SIGSTOP, max)],
    ids=["killed", "preempted", "stopped"],
)
def test_the_others_continue_to_the_same_bits(number, pick, uninterrupted, tmp_path):
    signal_at(tmp_path, 3, 4, pick, number)
    found = launch.run(elastic.train, tmp_path, [4], nproc=3, elastic=(1, 3))
    assert (found, rows(tmp_path)) == uninterrupted
    ledger = list(map(json.loads, (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()))
    changes = [row for row in ledger if row.get("event") == "members"]
    assert len(changes[0]["left"]) == 1
    assert len(changes[0]["members"]) == 2
    seen = {path.name: path.read_text().split() for path in tmp_path.glob("seen-*")}
    steps = [str(step) for step in range(uninterrupted[0][1])]
    assert [*seen.values()].count(steps) >= 2  # two processes ran from the first step to the last


@pytest.mark.parametrize(
    "collective", sample("STOKER_KILLS", [2, 5, *range(18, 24), 57], 2, [2, 57])
)
def test_rank_0_may_die_before_any_collective(collective, uninterrupted, tmp_path):
    """Before it has chosen the run folder, at every point of a step, and in the last save."""
    *found, count = launch.run(elastic.die_at, tmp_path, collective, nproc=2, elastic=(1, 2))
    assert (tuple(found), rows(tmp_path)) == uninterrupted
    assert count >= collective - 1


def test_rank_0_may_die_while_it_saves(uninterrupted, tmp_path, capfd):
    job = (tmp_path, [], 0, elastic.DiesInSave())
    found = launch.run(elastic.train, *job, nproc=3, elastic=(1, 3))
    assert (found, rows(tmp_path)) == uninterrupted
    error = capfd.readouterr().err
    assert "member 0: rank 0 was killed by SIGKILL" in error
    assert "waited for each other" not in error  # as they do in different collectives


def test_a_process_whose_loader_loses_a_worker_is_lost(uninterrupted, tmp_path, capfd):
    job = (tmp_path, [], 1, elastic.LosesWorker())
    found = launch.run(elastic.train, *job, nproc=2, elastic=(1, 2))
    assert (found, rows(tmp_path)) == uninterrupted
    assert "member 1: a worker of its DataLoader was killed; the others" in capfd.readouterr().err


def test_a_lost_connection_of_your_own_ends_the_job(tmp_path):
    job = (tmp_path, [], 0, elastic.LosesDatabase())
    with pytest.raises(RankFailed, match="failed with ConnectionResetError"):
        launch.run(elastic.train, *job, nproc=2, elastic=(1, 2))


def test_connections_of_others_stay_open(tmp_path):
    found = launch.run(elastic.open_while_connecting, tmp_path, nproc=2, elastic=(2, 2))
    assert found == (1, True)


def test_a_process_may_be_lost_while_data_is_sent_to_it():
    assert 1 not in launch.run(elastic.stop_in_transfer, nproc=2, elastic=(1, 2))


def test_a_member_that_waits_for_a_former_group_is_stuck(monkeypatch):
    monkeypatch.setattr("stoker.launch.elastic._STUCK", 0.0)
    jobs = JobStore(HashStore())
    reports = _Reports(jobs)
    waits = [(True, True, 1), (False, False, 1), (True, True, 2), (True, False, 1)]
    for member, (waiting, in_group, generation) in enumerate(waits):
        jobs.report(member, Progress(0, waiting, in_group, 0, generation))
    reports.silent([0, 1, 2, 3])
    assert reports.stuck([0, 1, 2, 3], newest=2) == []
    sleep(0.01)
    reports.silent([0, 1, 2, 3])
    assert reports.stuck([0, 1, 2, 3], newest=2) == [0]


def test_members_that_wait_for_each_other_end_the_job(monkeypatch, capfd):
    monkeypatch.setattr("stoker.launch.elastic._STALLED", 1.5)
    with pytest.raises(RankFailed, match=r"members \[0, 1\] have waited for each other for"):
        launch.run(elastic.wait_for_each_other, nproc=2, elastic=(2, 2))
    assert "they form a new group" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("elastic_range", "nproc", "text"),
    [((2, 3), 1, "elastic is 2:3 and nproc is 1"), ((1, 2), 4, "elastic is 1:2 and nproc is 4")],
)
def test_a_range_that_does_not_fit_is_rejected(elastic_range, nproc, text):
    with pytest.raises(ValueError, match=text):
        launch.run(print, nproc=nproc, elastic=elastic_range)


def test_spark_rejects_elastic():
    with pytest.raises(ValueError, match="elastic is not an option of the 'spark' launcher"):
        launch.run(print, on="spark", workers=2, elastic=(1, 2))


def test_a_connection_to_a_worker_of_a_loader_that_breaks_is_a_lost_worker():
    class _MultiProcessingDataLoaderIter:
        def _try_get_data(self) -> None:
            raise ConnectionResetError("reset by peer")  # as in receiving a tensor

    with pytest.raises(ConnectionResetError) as error:
        _MultiProcessingDataLoaderIter()._try_get_data()
    assert result_of(error.value).lost_worker
    assert not result_of(ConnectionResetError("the database was reset by peer")).lost_worker
