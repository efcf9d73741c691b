"""A rank that stands still, or leaves early, is named; the job ends or is restarted."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

import pytest

from support.launch.training import plan_faults
from support.processes import HANG, alive, wait_for_work, wait_until_all_have_ended
from support.server import Python

pytestmark = [pytest.mark.process, pytest.mark.slow]

CONFIG = Path(__file__).parents[1] / "support" / "launch" / "stuck.yaml"
HUNG_AFTER = 10
LOCAL = ("-m", "stoker", "train", str(CONFIG), "--nproc", "2")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")

STUCK = {
    "data": (1, "sleep", r"has made no progress for \d+ s: it is fetching data after step \d+"),
    "stopped": (1, "stop", r"has not reported for \d+ s: it is stopped \(state T\); its last"),
    "save": (0, "lock", r"has made no progress for \d+ s: it is saving after step \d+"),
    "forward": (0, "sleep", r"has made no progress for \d+ s: it is in the forward pass of step"),
    "validation": (1, "lock", r"has made no progress for \d+ s: it is in the validation after st"),
    "hook": (0, "sleep", r"has made no progress for \d+ s: it is in hook 'Stuck' at after_step,"),
}
SAMPLE = {"local": ["stopped", "save", "data"], "torchrun": ["forward", "stopped", "validation"]}
"""Those that are tried in each test run; ``STOKER_STUCK=all`` tries all (``make stuck``)."""


Job: TypeAlias = "subprocess.Popen[str] | Python"


def start(folder: Path, launcher: str, *overrides: str, restarts: int = 0) -> Job:
    given = ("--max-restarts", str(restarts))
    path = os.pathsep.join(filter(None, sys.path))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    if launcher == "local":
        return Python(*LOCAL, *given, *overrides, cwd=folder, env=env)
    return subprocess.Popen(
        [*TORCHRUN, *given, "-m", "stoker", "train", str(CONFIG), *overrides],
        cwd=folder,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env=env,
    )


def ended(started: Job, folder: Path) -> tuple[int, str]:
    """Return the exit code of the job and what it printed; no process of it is left."""
    try:
        _, err = started.communicate(timeout=HANG)
        assert alive(folder) == []
    finally:
        started.kill()
        started.wait()
    return started.returncode, err


@pytest.mark.parametrize("launcher", ["local", "torchrun"])
def test_a_rank_that_stands_still_is_named_with_its_stack_and_the_job_is_restarted(
    launcher, tmp_path
):
    names = list(STUCK) if os.environ.get("STOKER_STUCK") == "all" else SAMPLE[launcher]
    faults = [
        {"rank": rank, "how": how, "step": 4 * number + 4,
         "where": "forward" if name == "stopped" else name}
        for number, name in enumerate(names)
        for rank, how, _ in [STUCK[name]]
    ]  # fmt: skip
    plan_faults(tmp_path, *faults)
    job = start(tmp_path, launcher, f"run.hung_after={HUNG_AFTER}", restarts=len(names))
    code, err = ended(job, tmp_path)
    assert code == 0, err
    named = [line for line in err.splitlines() if line.startswith("error: rank")]
    assert len(named) == len(names), err
    for line, name in zip(named, names, strict=True):
        rank, _, words = STUCK[name]
        assert re.match(rf"error: rank {rank} {words}", line)
        assert re.search(r"\(pid \d+ on .+\); the stacks of its threads:$", line)
    assert err.count("in stand_still") == len(names), err


@pytest.mark.parametrize(("how", "launcher"), [("exit", "local"), ("vanish", "torchrun")])
def test_a_rank_that_leaves_early_with_code_0_is_the_one_to_blame(how, launcher, tmp_path):
    plan_faults(tmp_path, {"rank": 1, "where": "hook", "how": how, "step": 2})
    code, err = ended(start(tmp_path, launcher), tmp_path)
    assert code == 1
    if launcher == "local":
        assert err.splitlines()[-1] == (
            "stoker: rank 1 exited with code 0 before the other ranks had finished; "
            "the other ranks were stopped"
        )
        assert "Traceback" not in err
    else:
        assert re.search(r"\[rank0\]: rank 1 \(pid \d+ on .+\) has left the job", err)


@pytest.mark.parametrize(
    ("to", "how"), [("launcher", "stop"), ("the other rank", "sleep")]
)  # fmt: skip
def test_a_preemption_while_a_rank_stands_still_ends_with_143_and_the_newest_checkpoint(
    to, how, tmp_path
):
    plan_faults(tmp_path, {"rank": 1, "where": "forward", "how": how, "step": 4})
    job = start(tmp_path, "local", "run.grace=2", "run.dead_after=4", restarts=3)
    wait_for_work(tmp_path, 1)
    if to == "launcher":
        job.send_signal(signal.SIGTERM)
    else:
        (file,) = tmp_path.glob("pid-0-*")
        os.kill(int(file.read_text()), signal.SIGTERM)
    code, err = ended(job, tmp_path)
    assert code == 128 + signal.SIGTERM, err
    assert "restarting" not in err
    assert list((tmp_path / "runs" / "stuck" / "checkpoints").glob("step-*/MANIFEST.json"))


@pytest.mark.parametrize("launcher", ["local", "torchrun"])
def test_a_stopped_rank_does_not_outlive_a_launcher_that_is_killed(launcher, tmp_path):
    plan_faults(tmp_path, {"rank": 1, "where": "forward", "how": "stop", "step": 4})
    job = start(tmp_path, launcher, "run.hung_after=40", "run.grace=2")
    wait_for_work(tmp_path, 1)
    job.kill()
    wait_until_all_have_ended(tmp_path)
    job.communicate(timeout=HANG)
