"""The place of a process among others, as launchers write it into the environment."""

import json
import os
import socket
import subprocess
import sys

import pytest

from stoker.core.dist import rendezvous_in
from support.server import Python

MEETING = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.9",
}


def slurm(**changes: str) -> dict[str, str]:
    return {**SLURM, **changes}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "0"},
        {"WORLD_SIZE": "4"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"},
        # the script of a batch job with four tasks, and a shell in an allocation
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
        slurm(SLURM_STEP_NUM_TASKS="1", SLURM_NTASKS="4", SLURM_PROCID="0"),
    ],
)
def test_a_process_that_nobody_gave_a_place_is_alone(environment):
    assert rendezvous_in(environment) is None


@pytest.mark.parametrize("more", [{}, {"LOCAL_RANK": "1"}, SLURM])
def test_the_usual_names_count_before_all_others(more):
    assert rendezvous_in({**MEETING, **more}) == MEETING


def test_a_task_of_slurm_has_the_place_of_its_step():
    assert rendezvous_in(SLURM) == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "gpu03",
        "MASTER_PORT": "24713",
    }


def test_where_the_tasks_of_slurm_meet_may_be_given():
    place = rendezvous_in(slurm(MASTER_ADDR="head", MASTER_PORT="1234"))
    assert place is not None
    assert (place["MASTER_ADDR"], place["MASTER_PORT"]) == ("head", "1234")


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu1", "gpu1"),
        ("gpu1,gpu2", "gpu1"),
        ("node[01-04,07]", "node01"),
        ("node[07,01-04]", "node07"),
        ("node[5]", "node5"),
        ("a-b[009-010]", "a-b009"),
        ("login,gpu[1-3]", "login"),
        ("gpu[1-3],login", "gpu1"),
        ("rack[2-3]node[08-09]-ib,x", "rack2node08-ib"),
        ("c1.cluster.example", "c1.cluster.example"),
    ],
)
def test_tasks_of_slurm_meet_on_the_first_node_of_the_step(nodes, first):
    place = rendezvous_in(slurm(SLURM_STEP_NODELIST=nodes))
    assert place is not None
    assert place["MASTER_ADDR"] == first


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (["MASTER_ADDR"], "RANK=1 and WORLD_SIZE=4 are set, but MASTER_ADDR is not"),
        (["MASTER_PORT"], "MASTER_PORT is not"),
        (["MASTER_ADDR", "MASTER_PORT"], "MASTER_ADDR and MASTER_PORT is not"),
    ],
)
def test_a_place_that_is_half_given_is_refused_and_not_taken_for_none(missing, words):
    with pytest.raises(ValueError, match=words):
        rendezvous_in({name: value for name, value in MEETING.items() if name not in missing})


SCRIPT = """
import json
from stoker.core import dist
dist.connect()
found = dist.all_gather_object(dist.rank())
if dist.is_main():
    print(json.dumps([found, dist.all_reduce_sum(1.0)]))
else:
    dist.all_reduce_sum(1.0)
"""


@pytest.mark.slow
def test_torchrun_needs_nothing(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    script = ("--nproc-per-node=2", str(tmp_path / "script.py"))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *script],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert json.loads(done.stdout) == [[0, 1], [2.0]]


@pytest.mark.slow
def test_srun_needs_nothing(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ours = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost"}
    tasks = [
        Python(
            str(tmp_path / "script.py"),
            env={
                **os.environ,
                **ours,
                "OMP_NUM_THREADS": "1",
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(rank),
                "MASTER_PORT": str(port),
            },
        )
        for rank in (0, 1)
    ]
    (out, _), _ = [task.communicate(timeout=600) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0]
    assert json.loads(out) == [[0, 1], [2.0]]
