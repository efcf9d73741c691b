"""Fewer bits where the processor has them, and words where it only says so."""

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


def told(script: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != CAP} | more
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )


def test_bf16_computes_on_this_machine_or_is_refused_in_words():
    found = told(WIDE)
    if found.returncode != 0:
        assert found.stderr.splitlines()[-1].startswith("ValueError: precision 'bf16' would end")
        found = told(WIDE, **{CAP: "AVX512_CORE_BF16"})  # as those words say
    assert (found.returncode, found.stdout) == (0, "computed\n")


@pytest.fixture
def dies_if_tried(monkeypatch):
    """A machine that ends what computes in bfloat16."""
    monkeypatch.delenv(CAP)
    monkeypatch.setattr(precision, "_TRY", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    precision._check_processor.cache_clear()
    yield
    precision._check_processor.cache_clear()


@pytest.mark.usefixtures("dies_if_tried")
def test_bf16_is_refused_where_tiles_are_announced_and_missing(monkeypatch):
    monkeypatch.setattr(precision, "_announces_tiles", lambda: True)
    engine(precision="fp32")
    with pytest.raises(ValueError, match=r"announces AMX .* set ONEDNN_MAX_CPU_ISA=AVX512_CORE"):
        engine(precision="bf16")
    monkeypatch.setenv(CAP, "AVX512_CORE_BF16")
    engine(precision="bf16")


@pytest.mark.usefixtures("dies_if_tried")
def test_bf16_is_not_tried_where_no_tiles_are_announced(monkeypatch):
    monkeypatch.setattr(precision, "_announces_tiles", lambda: False)
    engine(precision="bf16")
