"""A command in processes of its own: what is refused before they start, and how they end."""

import pytest

from stoker.cli import main

pytestmark = pytest.mark.process


@pytest.fixture
def stoker(folder, capfd):
    """Runs a command; its exit code, what it printed, and what it complained about."""

    def stoker(*argv):
        capfd.readouterr()
        code = main([str(word) for word in argv])
        said = capfd.readouterr()
        return code, said.out, said.err

    return stoker


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run.epoch=3", "--nproc", "2"], "'run' has no 'epoch'; did you mean 'epochs'?"),
        (["--workers", "2"], "pass the number of processes: --nproc N, or --on LAUNCHER"),
        (["--max-restarts", "2"], "pass the number of processes"),
        (["--nproc", "0"], "nproc must be at least 1, got 0"),
        (["--nproc", "2", "--address", "here"], "address is not an option of the 'local' launcher"),
        (["--nproc", "2", "--on", "ray"], "nproc is not an option of the 'ray' launcher"),
        (["--nproc", "2", "run.dead_after=0"], "dead_after must be a positive number of seconds"),
    ],
)
def test_what_cannot_be_is_refused_before_a_process_starts(stoker, folder, argv, words):
    code, _, err = stoker("train", "cfg.yaml", *argv)
    assert code == 2
    assert words in err
    assert not (folder / "runs").exists()


def test_a_process_of_its_own_trains_and_evaluates_as_this_one_does(stoker, folder):
    code, out, err = stoker("train", "cfg.yaml", "run.epochs=1", "--nproc", "1")
    assert code == 0, err
    assert out.count("the run is in runs/cfg") == 1
    here = stoker("evaluate", "cfg.yaml")
    assert stoker("evaluate", "cfg.yaml", "--nproc", "1") == here
    assert stoker("train", "cfg.yaml", "--eval-only", "--nproc", "1") == here


def test_an_error_is_reported_once_with_the_rank_and_ends_with_1(stoker):
    model = "model={_target_: torch.nn.Linear, _args_: [5, 3]}"
    code, _, err = stoker("train", "cfg.yaml", model, "--nproc", "1")
    assert code == 1
    assert err.count("Traceback (most recent call last):") == 1
    assert err.splitlines()[-1] == "stoker: rank 0 failed with RuntimeError"


def test_a_fault_that_shows_while_parts_are_made_is_no_traceback_and_ends_with_2(stoker):
    model = "model={_target_: torch.nn.Linear, _args_: [-1, 3]}"
    code, _, err = stoker("train", "cfg.yaml", model, "--nproc", "1", "--max-restarts", "3")
    assert code == 2
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "stoker: rank 0 failed with ConfigError"


def test_a_script_runs_in_processes_that_know_their_rank_and_its_arguments(stoker, folder):
    script = folder / "script.py"
    script.write_text(
        "import os, sys\n"
        "print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], sys.argv[1:])\n"
        "sys.exit('--fail' in sys.argv and 'on purpose')\n"
    )
    code, out, err = stoker("run", "--nproc", "2", script, "--nproc", "7")
    assert code == 0, err
    assert sorted(out.splitlines()) == [
        "rank 0 of 2 ['--nproc', '7']",
        "rank 1 of 2 ['--nproc', '7']",
    ]
    code, _, err = stoker("run", "--nproc", "1", script, "--fail")
    assert code != 0
    assert "on purpose" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nproc", "0"], "at least 1, got 0"),
        (["--nproc", "2", "--explain"], "--explain does not"),
    ],
)
def test_a_script_is_not_started_with_options_that_cannot_be(stoker, folder, options, words):
    (folder / "script.py").write_text("print('started')")
    code, out, err = stoker("run", *options, "script.py")
    assert (code, out) == (2, "")
    assert words in err
