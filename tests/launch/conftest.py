"""A training in several processes, and what it comes to when nothing happens."""

from contextlib import chdir

import pytest

from stoker.cli import main
from support.launch.training import CONFIG, LOCAL, plan_faults, result


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory) -> dict:
    """What two local processes come to that nothing happens to."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    with chdir(folder):
        assert main(["train", str(CONFIG), *LOCAL]) == 0
    return result(folder / "runs" / "frail")


NOTICE = "hint: hooks 'Dies' act at every step"


@pytest.fixture
def train(tmp_path, monkeypatch, capfd):
    """Trains in processes of their own; the exit code, and what was complained about."""
    monkeypatch.chdir(tmp_path)

    def train(*argv, faults=()) -> tuple[int, str]:
        plan_faults(tmp_path, *faults)
        capfd.readouterr()
        code = main(["train", str(CONFIG), *map(str, argv)])
        lines = capfd.readouterr().err.splitlines(keepends=True)
        return code, "".join(line for line in lines if not line.startswith(NOTICE))

    return train
