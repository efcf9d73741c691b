"""Jobs on Ray: they run, are started again, and end with a clear error."""

import sys

import pytest

from stoker import launch
from support.launch.training import IN_A_SAVE, IN_ALL_REDUCE, IN_FORWARD, RAISES, result
from support.processes import wait_until_all_have_ended

pytestmark = pytest.mark.process

RAY = ("--on", "ray", "--workers", "2")


@pytest.mark.ray
@pytest.mark.usefixtures("ray")
def test_workers_that_are_killed_are_started_again_to_the_same_bits_and_ray_has_the_results(
    train, uninterrupted, tmp_path
):
    """The first command uses its restarts up, the second one goes on from where it came."""
    code, err = train(*RAY, "--max-restarts", 1, faults=[IN_FORWARD, RAISES])
    assert code == 1
    assert err.count("ValueError: no such thing as this step") == err.count("Traceback") == 1
    assert err.splitlines()[-1] == (
        "stoker: rank 1 failed with ValueError; all restarts used (1 of 1)"
    )
    code, err = train(*RAY, "--max-restarts", 2, faults=[IN_ALL_REDUCE, IN_A_SAVE])
    assert code == 0, err
    assert list((tmp_path / "faults").iterdir()) == []
    assert result(tmp_path / "runs" / "frail") == uninterrupted
    wait_until_all_have_ended(tmp_path)
    storage = tmp_path / "runs" / "ray"
    assert list(storage.rglob("checkpoint_*/MANIFEST.json")) != []
    assert any("val/loss" in p.read_text() for p in storage.rglob("checkpoint_manager_snap*.json"))


def test_without_ray_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ray.train.torch", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'stoker\[ray\]'"):
        launch.run(print, on="ray", workers=2)
