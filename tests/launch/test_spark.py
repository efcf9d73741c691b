"""Jobs on Spark: they run, are started again, and end with a clear error."""

import pickle
import re
import sys
from dataclasses import replace

import pytest

from stoker import RankFailed, launch
from stoker.dialects.aliases import Dialects
from stoker.launch.launchers.spark import _ResultServer, send_result
from stoker.launch.rank import ImportPath, RankResult, result_of
from support.launch import jobs
from support.launch.training import IN_A_SAVE, IN_ALL_REDUCE, IN_FORWARD, RAISES, result
from support.processes import wait_until, wait_until_all_have_ended

pytestmark = pytest.mark.process

SPARK = ("--on", "spark", "--workers", "2")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_workers_that_are_killed_are_started_again_to_the_same_bits(train, uninterrupted, tmp_path):
    """The first command uses its restarts up, the second one goes on from where it came."""
    code, err = train(*SPARK, "--max-restarts", 1, faults=[IN_FORWARD, RAISES])
    assert code == 1
    assert re.search(r"rank (0 or )?1 died; restarting \(1 of 1\)\n", err)
    assert err.count("ValueError: no such thing as this step") == 1
    assert err.splitlines()[-1] == (
        "stoker: rank 1 failed with ValueError; all restarts used (1 of 1)"
    )
    code, err = train(*SPARK, "--max-restarts", 2, faults=[IN_ALL_REDUCE, IN_A_SAVE])
    assert code == 0, err
    first, second = [line for line in err.splitlines() if "restarting" in line]
    # Spark may end the other rank before it can say that it only lost its peer.
    assert re.fullmatch(r"rank (0 or )?1 died; restarting \(1 of 2\)", first), err
    assert re.fullmatch(r"rank 0( or 1)? died; restarting \(2 of 2\)", second), err
    assert result(tmp_path / "runs" / "frail") == uninterrupted
    wait_until_all_have_ended(tmp_path)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_bad_input_is_reported_once_and_not_tried_again(tmp_path, capfd):
    with pytest.raises(RankFailed) as caught:
        launch.run(jobs.all_refuse, str(tmp_path), on="spark", workers=1, max_restarts=1)
    assert str(caught.value) == "rank 0 failed with Refused"
    assert caught.value.code == 2
    assert capfd.readouterr().err.count("the config has no 'model'\n") == 1
    wait_until_all_have_ended(tmp_path)


def result_at(when: float, error: Exception) -> RankResult:
    return replace(result_of(error), time=when)


def lost() -> Exception:
    """What a process raises that another one has left alone, in a hook."""
    error = RuntimeError("Connection closed by peer [127.0.0.1]:4711")
    error.add_note("raised by hook 'Agreement' in after_step, at step 3")
    return error


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({1: result_at(2.0, ValueError())}, "rank 1 failed with ValueError"),
        (
            {0: result_at(3.0, KeyError()), 1: result_at(2.0, ValueError())},
            "rank 1 failed with ValueErr",
        ),
        ({0: result_at(1.0, lost())}, "rank 1 died"),
        (
            {0: result_at(1.0, lost()), 1: result_at(2.0, ValueError())},
            "rank 1 failed with ValueError",
        ),
        ({}, "rank 0 or 1 died"),
    ],
)
def test_the_first_failure_is_distinguished_from_those_that_follow(sent, message, monkeypatch):
    with _ResultServer() as results:
        for rank, failure in sent.items():
            monkeypatch.setenv("RANK", str(rank))
            send_result(failure, ("127.0.0.1", results.port), results.key)
        wait_until(lambda: len(results._found) == len(sent), "all results")
        assert results.first_failure(2, RuntimeError())[0].startswith(message)


def test_a_worker_searches_modules_in_the_order_of_the_driver(tmp_path, monkeypatch):
    """A package of a script with the name of one of Python's, such as "test", comes first."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/lib/python"])
    sent = pickle.dumps(ImportPath())
    monkeypatch.setattr(sys, "path", ["/lib/spark.zip", "/lib/python"])
    pickle.loads(sent)
    assert sys.path == [str(tmp_path), "/lib/python", "/lib/spark.zip"]


def test_workers_find_modules_by_the_finders_of_the_driver(monkeypatch):
    finder = Dialects()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    sent = pickle.dumps(ImportPath())
    without = [one for one in sys.meta_path if one is not finder]
    monkeypatch.setattr(sys, "meta_path", list(without))
    pickle.loads(sent)
    pickle.loads(sent)  # a worker may run several tasks
    assert [type(one) for one in sys.meta_path] == [Dialects, *map(type, without)]


def test_a_late_result_of_the_last_attempt_is_not_one_of_this_attempt(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    with _ResultServer() as last:
        pass
    with _ResultServer() as results:
        send_result(result_at(1.0, lost()), ("127.0.0.1", last.port), last.key)
        send_result(result_at(1.0, lost()), ("127.0.0.1", results.port), last.key)
        monkeypatch.setenv("RANK", "1")
        send_result(result_at(2.0, lost()), ("127.0.0.1", results.port), results.key)
        wait_until(lambda: results._found, "the result of this attempt")
        assert results.first_failure(2, RuntimeError()) == ("rank 0 died", 1)


def test_if_no_task_has_sent_anything_the_error_of_spark_is_shown(capsys):
    error = RuntimeError("ModuleNotFoundError: No module named 'mine'\n\tat org.apache.spark.X")
    with _ResultServer() as results:
        assert results.first_failure(1, error) == ("rank 0 died", 1)
    assert capsys.readouterr().err == "ModuleNotFoundError: No module named 'mine'\n"


def test_without_pyspark_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.delitem(sys.modules, "pyspark.ml.torch.distributor", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'stoker\[spark\]'"):
        launch.run(print, on="spark", workers=2)


def test_without_java_the_message_says_what_is_missing(monkeypatch):
    from stoker.launch.launchers import spark

    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ImportError, match="Spark needs a Java runtime, 17 or newer"):
        spark._check_java()
