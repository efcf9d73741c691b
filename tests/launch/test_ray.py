"""Jobs on Ray: they run, are started again, and end with a clear error."""

import sys

import pytest

from stoker import launch
from support.launch.training import IN_A_SAVE, IN_ALL_REDUCE, IN_FORWARD, RAISES, result
from support.processes import wait_until_all_have_ended
from support.tasks import elastic

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


@pytest.mark.ray
@pytest.mark.usefixtures("ray")
def test_a_job_with_a_range_of_workers_is_restarted_to_the_same_bits(tmp_path):
    expected = launch.run(elastic.train, tmp_path / "one", [], nproc=1)
    killed = tmp_path / "killed"
    job = (tmp_path / "two", [], 0, elastic.DiesOnce(killed))
    where = {"on": "ray", "storage": tmp_path / "ray"}
    found = launch.run(elastic.train, *job, elastic=(1, 2), max_restarts=1, **where)
    assert killed.exists()
    assert found == expected


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"elastic": (1, 2)}, "elastic is 1:2 and max_restarts is 0"),
        ({"elastic": (1, 2), "workers": 2, "max_restarts": 1}, "leave workers out"),
        ({"elastic": (2, 1), "max_restarts": 1}, "expected 1 <= least <= most"),
    ],
)
def test_a_range_that_ray_cannot_use_is_rejected(options, text):
    with pytest.raises(ValueError, match=text):
        launch.run(print, on="ray", **options)


def test_without_ray_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ray.train.torch", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'stoker\[ray\]'"):
        launch.run(print, on="ray", workers=2)
