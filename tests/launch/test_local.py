"""Processes on this machine: they start, and none outlives another's death."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stoker import Preempted, RankFailed, launch
from stoker.launch.processes import Processes
from stoker.launch.rank import serialize
from support.launch import jobs
from support.processes import (
    FOREVER,
    HANG,
    alive,
    wait_for_files,
    wait_for_work,
    wait_until_all_have_ended,
)
from support.server import Python

pytestmark = pytest.mark.process


def fresh(*arguments: str) -> "subprocess.Popen[str]":
    """Start an interpreter as a person would; its launcher starts a fork server of its own."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *arguments], start_new_session=True, **streams)


class Launcher:
    """A launcher in a process of its own."""

    def __init__(self, folder: Path, job: str, start=Python, **options) -> None:
        self.folder = folder
        options = {"nproc": 2, "dead_after": 4.0, **options}
        self.process = start(jobs.__file__, str(folder), job, json.dumps(options))

    def signal(self, number: int) -> float:
        """Send the signal once the job is at work, and return when that was."""
        wait_for_work(self.folder, 0, 1)
        self.process.send_signal(number)
        return time.monotonic()

    def ended(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=HANG)
        assert alive(self.folder) == []
        return self.process.returncode, out, err


@pytest.fixture
def launcher(tmp_path):
    started = []

    def launcher(job: str, **options) -> Launcher:
        started.append(Launcher(tmp_path, job, **options))
        return started[-1]

    yield launcher
    for one in started:
        one.process.kill()
        one.process.communicate(timeout=HANG)


class Killer(threading.Thread):
    """Kills a rank from outside, once it is at work."""

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(daemon=True)
        self.folder, self.rank = folder, rank
        self.start()

    def run(self) -> None:
        wait_for_work(self.folder, self.rank)
        os.kill(int((self.folder / f"pid-{self.rank}").read_text()), signal.SIGKILL)


def failure_of(folder: Path, job, *args, **options) -> RankFailed:
    """The error that a job ends with; no process of it is left."""
    with pytest.raises(RankFailed) as caught:
        launch.run(job, str(folder), *args, **{"nproc": 2, "dead_after": 4.0, **options})
    assert alive(folder) == []
    return caught.value


def test_every_process_knows_its_place_and_may_speak(tmp_path, capfd):
    found = launch.run(jobs.meet, str(tmp_path), nproc=2)
    assert found["sum"] == 3.0
    assert found["ranks"] == [
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        for rank in (0, 1)
    ]
    assert sorted(capfd.readouterr().err.splitlines()) == ["rank 0 speaks", "rank 1 speaks"]


def test_what_rank_0_returns_comes_back():
    threads = int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0))))
    assert launch.run(jobs.with_arguments, "", "a", 2) == ["a", 2, 1, threads]


def test_a_function_within_a_function_is_sent_by_cloudpickle():
    text = "sent"
    assert launch.run(lambda: text) == "sent"


def test_what_cannot_be_sent_is_rejected_with_a_clear_error(monkeypatch):
    def inner():
        pass

    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(
        ValueError, match="inner cannot be sent to another process .* at the top level"
    ):
        launch.run(inner)


def test_a_generator_among_the_arguments_is_rejected_with_a_clear_error():
    with pytest.raises(ValueError, match="pass plain values"):
        launch.run(print, (x for x in "ab"))


def test_what_cannot_be_sent_back_is_an_error_with_a_clear_message(capfd):
    with pytest.raises(RankFailed, match="rank 0 failed with TypeError"):
        launch.run(lambda: (x for x in "ab"))
    assert "the function returned a generator, which cannot be pickled" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nproc": 0}, "nproc must be at least 1, got 0"),
        ({"on": "rai"}, "did you mean 'ray'"),
        ({"workers": 2}, "workers is not an option of the 'local' launcher"),
        ({"address": "x"}, "address is not an option of the 'local' launcher"),
        ({"storage": "x"}, "storage is not an option of the 'local' launcher"),
        (
            {"on": "ray", "nproc": 2},
            "nproc is not an option of the 'ray' launcher .*: pass workers=2",
        ),
        ({"on": "ray", "workers": 0}, "workers must be at least 1, got 0"),
        ({"on": "spark", "storage": "x"}, "storage is not an option of the 'spark' launcher"),
        ({"max_restarts": -1}, "max_restarts must be at least 0, got -1"),
        ({"dead_after": 0}, "dead_after must be a positive number of seconds, got 0"),
    ],
)
def test_what_cannot_be_is_refused_before_a_process_starts(options, words):
    with pytest.raises(ValueError, match=words):
        launch.run(print, **options)


@pytest.mark.parametrize(
    ("job", "dead_after"),
    [
        (jobs.one_raises, HANG),
        (jobs.one_is_gone_before_it_raises, HANG),
        (jobs.one_raises_while_another_sleeps, 4.0),
    ],
)
def test_the_first_error_is_on_top_and_once(tmp_path, capfd, job, dead_after):
    failure = failure_of(tmp_path, job, dead_after=dead_after)
    assert str(failure) == "rank 1 failed with ValueError; the other ranks were stopped"
    assert failure.code == 1
    err = capfd.readouterr().err
    lines = err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert f"in {job.__name__}" in lines[1]
    assert lines[-1] == "ValueError: there is no such thing"
    assert len(lines) == 4
    assert "elastic" not in err


@pytest.mark.parametrize("job", [jobs.in_forward, jobs.in_all_reduce])
def test_a_rank_that_is_killed_ends_the_job(tmp_path, capfd, job):
    """The other rank would wait for much longer than this test may take: the launcher ends it."""
    Killer(tmp_path, 1)
    failure = failure_of(tmp_path, job)
    assert str(failure) == "rank 1 was killed by SIGKILL; the other ranks were stopped"
    assert failure.code == 128 + signal.SIGKILL
    assert capfd.readouterr().err == ""


def test_an_exit_code_is_passed_on(tmp_path, capfd):
    failure = failure_of(tmp_path, jobs.one_leaves, 7)
    assert str(failure) == "rank 1 exited with code 7; the other ranks were stopped"
    assert failure.code == 7
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if "ProcessGroupGloo" not in line] == []  # torch's own


def test_bad_input_is_reported_once_without_a_traceback_and_never_tried_again(tmp_path, capfd):
    assert failure_of(tmp_path, jobs.all_refuse, max_restarts=3).code == 2
    assert capfd.readouterr().err == "the config has no 'model'\n"
    assert (tmp_path / "attempts-0").read_text() == "1"


def test_what_a_rank_has_started_ends_with_it(tmp_path):
    Killer(tmp_path, 1)
    failure_of(tmp_path, jobs.with_a_helper)
    assert len(list(tmp_path.glob("pid-helper-*"))) == 2


def test_nothing_outlives_a_launcher_that_is_killed(launcher, tmp_path):
    launcher("with_a_helper", start=fresh).signal(signal.SIGKILL)
    wait_until_all_have_ended(tmp_path)


def test_ctrl_c_ends_a_function_that_does_not_mind_it(launcher):
    job = launcher("works")
    job.signal(signal.SIGINT)
    code, _, err = job.ended()
    assert code == -signal.SIGINT
    assert err.splitlines()[-1] == "KeyboardInterrupt"


def test_a_second_ctrl_c_ends_all_at_once(launcher, tmp_path):
    """Not even the grace time is waited for, which is longer than this test may take."""
    job = launcher("never_stops", grace=FOREVER)
    job.signal(signal.SIGINT)
    wait_for_files(tmp_path, "signalled", 0, 1)
    assert job.process.poll() is None
    job.signal(signal.SIGINT)
    assert job.ended()[0] == -signal.SIGINT


def test_sigterm_to_one_rank_lets_all_save_and_leave(tmp_path):
    def signal_one() -> None:
        wait_for_work(tmp_path, 0, 1)
        os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGTERM)

    threading.Thread(target=signal_one, daemon=True).start()
    with pytest.raises(Preempted):
        launch.run(jobs.saves_and_leaves, str(tmp_path), nproc=2, max_restarts=2)
    assert {path.name for path in tmp_path.glob("saved-*")} == {"saved-0", "saved-1"}


def test_ranks_that_do_not_leave_in_the_grace_time_are_ended(launcher):
    job = launcher("never_stops", grace=0.5, dead_after=0.5)
    since = job.signal(signal.SIGTERM)
    assert job.ended()[0] == 143
    assert time.monotonic() - since > 0.9  # they had their time


def test_a_job_that_failed_is_started_again_and_says_so(tmp_path, capfd):
    options = {"nproc": 2, "dead_after": 4.0, "max_restarts": 2}
    assert launch.run(jobs.second_attempt_succeeds, str(tmp_path), **options) == 4
    assert capfd.readouterr().err.splitlines()[-1] == (
        "rank 1 failed with ValueError; the other ranks were stopped; restarting (1 of 2)"
    )


def test_a_signal_to_a_process_that_has_just_exited_is_dropped():
    processes = Processes(serialize(print, ()), [{**os.environ, "RANK": "0"}])
    while Path(f"/proc/{processes.pids[0]}").exists():
        time.sleep(0.01)
    processes.send(signal.SIGTERM, 0)  # before `poll` has seen that it has exited
    processes.poll()
    processes.kill()
    assert processes.exited[0].code == 0
