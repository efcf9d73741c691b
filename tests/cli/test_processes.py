"""What only a process of its own can show."""

import os
import signal
import subprocess
import sys

import pytest

from support.processes import HANG, wait_until
from support.server import Python

pytestmark = pytest.mark.process

ENDLESS = """\

class Slow(Net):
    def forward(self, x):
        import pathlib, time
        pathlib.Path("started").touch()
        time.sleep(0.02)
        return super().forward(x)
"""


def environment():
    tests = os.path.dirname(os.path.dirname(__file__))
    path = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH", "")]))
    usual = {name: v for name, v in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**usual, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def process(folder):
    def process(*argv, **options):
        return subprocess.Popen(
            [sys.executable, *argv],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            **options,
        )

    return process


def test_help_and_usage_do_not_import_torch(process):
    code = """
import sys
from stoker.cli import main
from stoker.cli.main import _COMMANDS
commands = [[name, "--help"] for name in _COMMANDS]
for argv in (["--help"], ["--version"], *commands, ["ckpt", "diff", "--help"]):
    try:
        main(argv)
    except SystemExit as end:
        assert end.code == 0
slow = {"torch", "numpy", "torchmetrics", "matplotlib", "omegaconf"} & set(sys.modules)
assert not slow, slow
"""
    running = process("-c", code)
    out, err = running.communicate(timeout=HANG)
    assert running.returncode == 0, err
    assert "usage: stoker" in out


def test_modules_are_not_searched_for_garbage_but_those_of_a_program_that_calls_the_command(
    process,
):
    code = """
import gc, sys
if sys.argv[1:]:
    import torch
from stoker.cli import main
assert main(["train", "cfg.yaml", "--fast-dev-run"]) == 0
searched = {id(one) for one in gc.get_objects()}
modules = [vars(sys.modules[name]) for name in ("torch", "parts")]
print([id(names) in searched for names in modules], gc.isenabled())
"""
    out, err = process("-c", code).communicate(timeout=HANG)
    assert out.splitlines()[-1] == "[False, False] True", err
    out, err = process("-c", code, "within a program").communicate(timeout=HANG)
    assert out.splitlines()[-1] == "[True, True] True", err


def test_python_dash_m_stoker_is_the_command_and_codes_are_exit_codes(process):
    running = process("-m", "stoker", "config", "cfg.yaml", "run.epoch=3")
    out, err = running.communicate(timeout=HANG)
    assert running.returncode == 2
    assert out == ""
    assert err == ("stoker: override 'run.epoch=3': 'run' has no 'epoch'; did you mean 'epochs'?\n")


def test_an_error_while_training_ends_with_1(folder):
    wrong = "model={_target_: torch.nn.Linear, _args_: [5, 3]}"
    running = Python("-m", "stoker", "train", "cfg.yaml", wrong, cwd=folder, env=environment())
    _, err = running.communicate(timeout=HANG)
    assert running.returncode == 1
    assert "RuntimeError" in err


@pytest.mark.parametrize("flags", [[], ["--nproc", "1"]], ids=["here", "launched"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_with_its_code_and_a_checkpoint(folder, number, code, flags):
    (folder / "parts.py").write_text((folder / "parts.py").read_text() + ENDLESS)
    slow = ("model={_target_: parts.Slow}", "run.epochs=1000000", f"run.grace={HANG}")
    command = ("-m", "stoker", "train", "cfg.yaml", *slow, *flags)
    running = Python(*command, cwd=folder, env=environment())
    wait_until(lambda: (folder / "started").exists() or running.poll() is not None, "the training")
    running.send_signal(number)
    _, err = running.communicate(timeout=HANG)
    assert running.returncode == code, err
    assert "Traceback" not in err
    assert (folder / "runs" / "cfg" / "model.safetensors").is_file()
    assert list((folder / "runs" / "cfg" / "checkpoints").glob("step-*"))


def test_a_reader_that_goes_away_is_no_error(process):
    running = process("-m", "stoker", "config", "cfg.yaml")
    running.stdout.close()
    err = running.stderr.read()
    running.stderr.close()
    assert (running.wait(timeout=HANG), err) == (0, "")


def test_torchrun_starts_a_run_with_nothing_to_add(process, folder):
    running = process(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"),
        *("-m", "stoker", "train", "cfg.yaml", "run.epochs=1"),
    )
    _, err = running.communicate(timeout=HANG)
    assert running.returncode == 0, err
    assert (folder / "runs" / "cfg" / "model.safetensors").is_file()
