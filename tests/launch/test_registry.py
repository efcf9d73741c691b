"""Launchers by name: our own, those of installed packages, and names that do not exist."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from stoker import launch
from stoker.cli import main
from stoker.launch import launchers
from support.project import project

OWN = ["env", "local", "ray", "spark"]


@pytest.fixture
def registered(monkeypatch):
    """Registers a launcher as an installed package does, and records its calls."""
    calls = []

    def fake(fn, args, *, workers=1, address=None):
        calls.append((workers, address))
        return fn(*args)

    module = ModuleType("a_package")
    module.fake = fake
    monkeypatch.setitem(sys.modules, "a_package", module)
    points = [
        EntryPoint("fake", "a_package:fake", launchers.GROUP),
        EntryPoint("torn", "a_package:gone", launchers.GROUP),
    ]
    monkeypatch.setattr(
        "importlib.metadata.entry_points",
        lambda *, group: points if group == launchers.GROUP else [],
    )
    return calls


def test_each_module_of_the_folder_is_a_launcher():
    assert launchers.names()[: len(OWN)] == OWN
    for name in OWN:
        assert callable(launchers.get(name))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (None, ("nproc", "max_restarts", "dead_after", "grace", "elastic")),
        ("env", ()),
        ("ray", ("workers", "address", "storage", "max_restarts", "elastic")),
        ("spark", ("workers", "address", "max_restarts")),
    ],
)
def test_a_launcher_accepts_its_keyword_arguments(name, options):
    assert launch.accepted_options(name) == options


def test_a_package_registers_a_launcher(registered):
    assert launchers.names() == [*OWN, "fake", "torn"]
    assert launch.run(sum, [1, 2], on="fake", workers=3, address="here") == 3
    assert registered == [(3, "here")]
    with pytest.raises(ValueError, match=r"storage is not an option of the 'fake' launcher \(it"):
        launch.run(sum, [1, 2], on="fake", storage="x")


def test_a_registered_launcher_that_cannot_be_imported_is_named(registered):
    with pytest.raises(ImportError, match=r"launcher 'torn' \(a_package:gone\) cannot be imported"):
        launch.run(print, on="torn")


def test_an_unknown_launcher_gets_the_nearest_name_and_the_list(registered):
    with pytest.raises(ValueError, match=r"there is no launcher 'fakke'") as caught:
        launch.run(print, on="fakke")
    assert str(caught.value) == (
        "there is no launcher 'fakke'; did you mean 'fake'? "
        "(launchers: env, local, ray, spark, fake, torn)"
    )


@pytest.mark.process
def test_the_command_finds_launchers_by_name(tmp_path, monkeypatch, registered, capfd):
    project(tmp_path, monkeypatch)
    assert main(["evaluate", "cfg.yaml", "--on", "sparc"]) == 2
    assert capfd.readouterr().err == (
        "stoker: there is no launcher 'sparc'; did you mean 'spark'? "
        "(launchers: env, local, ray, spark, fake, torn)\n"
    )
    assert main(["train", "cfg.yaml", "--on", "fake", "--workers", "1"]) == 0
    assert registered == [(1, None)]
    assert "the run is in runs/cfg" in capfd.readouterr().out


def test_the_env_launcher_runs_the_function_as_the_rank_of_this_process(monkeypatch):
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name in place:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="needs a process that torchrun or srun has started"):
        launch.run(sum, [1, 2], on="env")
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    assert launch.run(sum, [1, 2], on="env") == 3
