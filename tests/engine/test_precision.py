"""bf16 runs on CPUs that support it, and is rejected on those that only report so."""

import os
import subprocess
import sys

import pytest

from stoker.engine import precision
from support.toys import engine

CAP = "ONEDNN_MAX_CPU_ISA"

WIDE = """
import torch
from torch import nn
from stoker import Engine
engine = Engine(nn.Linear(64, 64), device="cpu", precision="bf16")
engine.backward(engine(torch.ones(64, 64)).sum())
print("computed")
"""


def run(script: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != CAP} | more
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_bf16_computes_on_this_machine_or_is_rejected():
    found = run(WIDE)
    if found.returncode != 0:
        assert found.stderr.splitlines()[-1].startswith("ValueError: precision 'bf16' would crash")
        found = run(WIDE, **{CAP: "AVX512_CORE_BF16"})  # as the error says
    assert (found.returncode, found.stdout) == (0, "computed\n")


@pytest.fixture
def crashes_if_probed(monkeypatch):
    """Simulate a CPU that crashes a process which computes in bfloat16."""
    monkeypatch.delenv(CAP)
    monkeypatch.setattr(
        precision, "_PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    )
    precision._check_processor.cache_clear()
    yield
    precision._check_processor.cache_clear()


@pytest.mark.process
@pytest.mark.usefixtures("crashes_if_probed")
def test_bf16_is_rejected_where_amx_is_reported_and_missing(monkeypatch):
    monkeypatch.setattr(precision, "_reports_amx", lambda: True)
    engine(precision="fp32")
    with pytest.raises(ValueError, match=r"reports AMX .* set ONEDNN_MAX_CPU_ISA=AVX512_CORE"):
        engine(precision="bf16")
    monkeypatch.setenv(CAP, "AVX512_CORE_BF16")
    engine(precision="bf16")


@pytest.mark.usefixtures("crashes_if_probed")
def test_bf16_is_not_probed_where_no_amx_is_reported(monkeypatch):
    monkeypatch.setattr(precision, "_reports_amx", lambda: False)
    engine(precision="bf16")
