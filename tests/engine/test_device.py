"""Each process of a machine takes its own device. The accelerators are imitated: none was there."""

import os
from datetime import timedelta

import pytest
import torch
from torch import nn

from stoker import Engine
from stoker.core import dist
from stoker.core.dist import local_rank
from stoker.engine.checks import resolve_device
from stoker.parallel.parallel_model import ParallelModel

JOB = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
OF_LAUNCHERS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_LOCALID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
    "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "TORCHELASTIC_RUN_ID", "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "ASCEND_RT_VISIBLE_DEVICES",
)  # fmt: skip


@pytest.fixture
def machine(monkeypatch):
    """Make this machine have so many accelerators, and set the variables of a launcher."""
    selected = []

    def imitate(count, environment, kind="cuda"):
        for name in OF_LAUNCHERS:
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        found = torch.device(kind) if count else None
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: found)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
        monkeypatch.setattr(torch.accelerator, "set_device_index", selected.append)
        return selected

    return imitate


@pytest.mark.parametrize("device", ["auto", "cuda"])
@pytest.mark.parametrize(
    "environment",
    [
        JOB | {"LOCAL_RANK": "1"},
        JOB | {"LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none"},
        {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"},
        JOB | {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"},
        JOB | {"OMPI_COMM_WORLD_LOCAL_RANK": "1"},
        JOB | {"MPI_LOCALRANKID": "1"},
        JOB | {"RANK": "1"},
        JOB | {"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "4,5,6,7"},
        JOB | {"RANK": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
    ],
)
def test_a_process_takes_the_device_of_its_local_rank(machine, device, environment):
    machine(4, environment)
    assert resolve_device(device) == torch.device("cuda", 1)


@pytest.mark.parametrize("kind", ["cuda", "xpu", "privateuseone"])
def test_the_local_rank_counts_for_every_kind_of_accelerator(machine, kind):
    machine(2, JOB | {"LOCAL_RANK": "1"}, kind)
    assert resolve_device("auto") == torch.device(kind, 1)


@pytest.mark.parametrize(
    "environment",
    [
        JOB | {"LOCAL_RANK": "3", "CUDA_VISIBLE_DEVICES": "3"},
        JOB | {"LOCAL_RANK": "3", "CUDA_VISIBLE_DEVICES": "GPU-8f0b"},
        JOB | {"LOCAL_RANK": "3", "ROCR_VISIBLE_DEVICES": "3"},
        {
            "SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "3", "SLURM_LOCALID": "3",
            "CUDA_VISIBLE_DEVICES": "3",
        },
    ],
)  # fmt: skip
def test_a_process_that_sees_only_its_own_device_takes_it(machine, environment):
    machine(1, environment)
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("count", "more"),
    [
        (2, {}),
        (1, {}),
        (2, {"CUDA_VISIBLE_DEVICES": "0,1"}),
        (1, {"CUDA_VISIBLE_DEVICES": "0", "TORCHELASTIC_RUN_ID": "none"}),
    ],
)
def test_more_processes_than_devices_are_refused(machine, count, more):
    machine(count, JOB | {"LOCAL_RANK": "3"} | more)
    with pytest.raises(ValueError, match=f"process 3 on its machine.*sees {count} cuda device"):
        resolve_device("auto")
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("cuda:0") == torch.device("cuda", 0)


def test_a_single_process_takes_the_current_device(machine):
    machine(4, {})
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda")
    machine(4, {"LOCAL_RANK": "0", "WORLD_SIZE": "1", "RANK": "0"})
    assert resolve_device("auto") == torch.device("cuda")
    machine(0, JOB | {"LOCAL_RANK": "1"})
    assert resolve_device("auto") == torch.device("cpu")


def test_a_local_rank_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="LOCAL_RANK is 'first', expected the number of a process"):
        local_rank(JOB | {"LOCAL_RANK": "first"})


def test_an_engine_selects_its_device(machine):
    selected = machine(4, {}, "meta")
    made = Engine(nn.Linear(2, 2), device="meta:2")
    assert (made.device, selected) == (torch.device("meta", 2), [2])
    assert made.model.weight.is_meta
    Engine(nn.Linear(2, 2), device="cpu")
    assert selected == [2]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_nccl_gets_a_timeout_and_records_collectives(monkeypatch, device):
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT")
    for name in names:
        monkeypatch.setenv(name, "")  # so that it is as before after the test
        monkeypatch.delenv(name)
    calls = []
    monkeypatch.setattr(
        torch.distributed,
        "init_process_group",
        lambda *args, **options: calls.append((args, options)),
    )
    monkeypatch.setattr(dist.atexit, "register", lambda function: None)
    monkeypatch.setenv(names[0], "50")  # yours is kept
    dist.connect(device, timeout=30)
    ((backend,), options) = calls[0]
    assert backend == ("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    assert options["timeout"] == timedelta(seconds=30)
    assert os.environ[names[0]] == "50"
    assert os.environ.get(names[1]) == ("1" if device == "cuda" else None)


def test_only_pinned_memory_is_copied_without_waiting(monkeypatch):
    calls = []

    class Recorded(torch.Tensor):
        def to(self, device, non_blocking=False):
            calls.append((str(device), non_blocking))
            return self

        def is_pinned(self):
            return self.numel() == 2

    pinned, pageable = (torch.zeros(n).as_subclass(Recorded) for n in (2, 3))
    ParallelModel().place({"x": pinned, "y": [pageable]}, torch.device("cuda", 1))
    assert calls == [("cuda:1", True), ("cuda:1", False)]
