"""A training of two processes, one of which dies for real: it goes on to the same bits, or ends."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.launch.training import CONFIG, FAULTS, LOCAL, RAISES, plan_faults, result
from support.processes import HANG, alive, wait_for_work

pytestmark = pytest.mark.process

SAVES_AT_THE_END = (*LOCAL, "run.checkpoint.every=null")


def test_a_rank_killed_in_forward_all_reduce_and_save_is_restarted_to_the_same_bits(
    train, uninterrupted, tmp_path
):
    code, err = train(*LOCAL, "--max-restarts", len(FAULTS), faults=FAULTS)
    assert code == 0, err
    assert [line for line in err.splitlines() if "restarting" in line] == [
        f"rank {fault['rank']} was killed by SIGKILL; the other ranks were stopped; "
        f"restarting ({number} of {len(FAULTS)})"
        for number, fault in enumerate(FAULTS, 1)
    ]
    assert result(tmp_path / "runs" / "frail") == uninterrupted
    assert alive(tmp_path) == []


def test_restarts_that_are_used_up_end_with_137_and_say_so(train, tmp_path):
    """The other rank would wait for longer than this test may take: the launcher ends it."""
    fault = {"rank": 1, "where": "all-reduce", "step": 2, "always": True, "others": "stuck"}
    code, err = train(*LOCAL, "--max-restarts", 1, faults=[fault])
    assert code == 128 + signal.SIGKILL
    said = "rank 1 was killed by SIGKILL; the other ranks were stopped"
    assert "Traceback" not in err
    assert [line for line in err.splitlines() if "rank" in line] == [
        f"{said}; restarting (1 of 1)",
        f"stoker: {said}; all restarts used (1 of 1)",
    ]
    assert alive(tmp_path) == []


@pytest.mark.row("X02")
def test_a_hook_that_raises_on_one_rank_ends_all_with_its_traceback_on_top(train, tmp_path):
    """The other rank would wait for longer than this test may take: the launcher ends it."""
    code, err = train(*LOCAL, faults=[RAISES | {"others": "stuck"}])
    assert code == 1
    lines = err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert err.count("Traceback") == err.count("ValueError: no such thing as this step") == 1
    assert lines[-1] == "stoker: rank 1 failed with ValueError; the other ranks were stopped"
    assert alive(tmp_path) == []


def test_a_rank_that_is_stuck_in_its_data_is_found_and_shown(train, tmp_path):
    code, err = train(*LOCAL, "run.hung_after=10", faults=[{"rank": 1, "where": "data", "step": 3}])
    assert code == 75
    lines = err.splitlines()
    assert re.match(
        r"error: rank 1 has made no progress for \d\d+ s: it is fetching data after", lines[0]
    )
    assert "in __getitem__" in err
    assert "rank 0" not in err
    assert lines[-1] == "stoker: rank 1 exited with code 75; the other ranks were stopped"
    assert alive(tmp_path) == []


def test_ctrl_c_and_sigterm_save_on_all_ranks_and_the_same_command_resumes_to_the_same_bits(
    train, uninterrupted, tmp_path
):
    assert signalled(tmp_path, 2, signal.SIGINT) == 130
    assert newest_checkpoint(tmp_path) == "step-00000002"
    assert signalled(tmp_path, 5, signal.SIGTERM) == 143
    assert newest_checkpoint(tmp_path) == "step-00000005"
    code, err = train(*SAVES_AT_THE_END)
    assert code == 0, err
    assert result(tmp_path / "runs" / "frail") == uninterrupted


def newest_checkpoint(folder: Path) -> str:
    return max(path.name for path in (folder / "runs" / "frail" / "checkpoints").glob("step-*"))


def signalled(folder: Path, step: int, number: int) -> int:
    """The exit code of a launcher in a process of its own, to which a signal comes after a step."""
    plan_faults(folder, {"where": "signal", "step": step})
    started = subprocess.Popen(
        [sys.executable, "-m", "stoker", "train", str(CONFIG), *SAVES_AT_THE_END],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        wait_for_work(folder, 0, 1)
        os.killpg(started.pid, number)
        _, err = started.communicate(timeout=HANG)
    finally:
        started.kill()
        started.wait()
    for rank in (0, 1):
        (folder / f"at-work-{rank}").unlink()
    assert "Traceback" not in err, err
    assert alive(folder) == []
    return started.returncode
