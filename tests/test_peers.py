"""The comparison with other trainers runs, reports peers that cannot run, and keeps results."""

import re
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from stoker.build import build_job
from stoker.config import load

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[1]


def command(page: Path, *arguments: str) -> list[str]:
    driver = [sys.executable, str(ROOT / "benchmarks" / "peers"), "--here", "--write"]
    return [*driver, "--page", str(page), *arguments]


def rows(text: str, title: str) -> dict[str, list[str]]:
    """Return the cells of a table by the first cell of each row."""
    part = text.split(f"{title}\n")[1].split("\n## ", maxsplit=1)[0]
    lines = [line for line in part.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in cells}


def test_peers_are_compared_and_one_that_cannot_run_is_shown_with_the_reason(tmp_path):
    page = tmp_path / "page.md"
    chosen = ("--only", "plain,stoker,mmengine", "--scenarios", "a,i", "--rounds", "2")
    printed = subprocess.check_output(command(page, *chosen, "--steps", "20"), text=True)
    text = page.read_text()
    assert printed == f"{text}\n"

    trained = rows(text, "Everything off, prepared batches")
    assert set(trained) == {"plain PyTorch", "plain PyTorch again", "Stoker", "MMEngine"}
    assert trained["Stoker"][-1] == "same bits"
    assert trained["plain PyTorch"][2:4] == ["+0", "1.00"]
    assert all(float(cell) > 0 for cell in trained["Stoker"][:2])
    assert set(trained["MMEngine"]) == {"–"}
    assert rows(text, "Prediction")["Stoker"][-1] == "same"
    assert "No module named 'mmengine'" in rows(text, "Machine and versions")["MMEngine"][0]
    assert "Rounds of 20 steps: 2;" in text
    assert not re.search(r"(^|[\s(`])/\w", text)  # no paths of this machine


@pytest.mark.parametrize("name", ["digits", "text"])
def test_the_configs_of_complete_jobs_start_like_their_scripts(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "peers")
    import work

    script = import_module(f"{name}_job").task(work.Watch())
    job = build_job(load(ROOT / "benchmarks" / "peers" / f"{name}.yaml", ["run.dir=null"]))
    ours, theirs = list(job.trainer.engine.model.parameters()), list(script.model.parameters())
    assert all(map(torch.equal, ours, theirs))
    assert len(ours) == len(theirs)
    assert type(job.trainer.engine.optimizer) is type(script.optimizer)
    assert job.run.epochs == script.epochs


def test_batches_that_are_gathered_by_hand_are_those_of_the_loader(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "peers")
    import table_job
    import work

    monkeypatch.setattr(table_job, "ROWS", 23_000)
    job = table_job.task(work.Watch())
    passes = []
    for batches in (job.data, job.by_hand):
        torch.manual_seed(1)
        passes.append([torch.cat([x.flatten(), y]) for _ in range(2) for x, y in batches])
    assert len(passes[0]) == 2 * len(job.by_hand)
    assert all(map(torch.equal, *passes))


def test_results_are_kept_when_the_comparison_is_interrupted(tmp_path):
    page = tmp_path / "page.md"
    chosen = ("--only", "plain", "--scenarios", "a", "--rounds", "1000000", "--steps", "20")
    with subprocess.Popen(
        command(page, *chosen), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stderr is not None
        for line in driver.stderr:
            if line.startswith("round 3 "):
                driver.send_signal(signal.SIGINT)
                break
        driver.stderr.read()
    assert driver.returncode == 0
    text = page.read_text()
    assert "interrupted" in text
    assert rows(text, "Everything off, prepared batches")["plain PyTorch"][-1] == "same bits"
