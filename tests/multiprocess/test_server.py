"""A process of the fork server behaves as an interpreter that was started for its arguments."""

import os
import signal

import pytest

from support.processes import HANG, wait_until
from support.server import HASH_SEED, Python, run

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("print(sys.argv, __name__); sys.exit(3)", (3, "['-c', 'a'] __main__\n", "")),
        ("sys.exit('no such thing')", (1, "", "no such thing\n")),
        ("import atexit; atexit.register(print, 'bye'); print('out')", (0, "out\nbye\n", "")),
        ("import os; os.system('echo from a child')", (0, "from a child\n", "")),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", (-signal.SIGKILL, "", "")),
    ],
)
def test_exit_codes_and_streams_are_those_of_an_interpreter(code, ended):
    done = run("-c", f"import sys; {code}", "a")
    assert (done.returncode, done.stdout, done.stderr) == ended


def test_an_error_is_shown_and_ends_with_1(tmp_path):
    (tmp_path / "script.py").write_text("import os\nprint(os.getcwd())\nraise ValueError('x')\n")
    done = run("script.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, f"{tmp_path}\n")
    assert done.stderr.splitlines()[-1] == "ValueError: x"


def test_ctrl_c_ends_it_by_the_signal(tmp_path):
    code = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(3600)"
    started = Python("-c", code, str(tmp_path / "at-work"))
    wait_until((tmp_path / "at-work").exists, "the process")
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(HANG)
    assert started.returncode == -signal.SIGINT
    assert err.splitlines()[-1] == "KeyboardInterrupt"


def test_it_has_torch_from_the_start_and_other_hashes_than_this_process():
    code = "import sys; print('torch' in sys.modules, hash('text'))"
    told, there = run("-c", code, check=True).stdout.split()
    assert told == "True"
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        assert int(there) != hash("text")


def test_a_launcher_in_it_uses_the_same_server():
    code = (
        "import os; from stoker import launch\n"
        "print([os.getppid()], launch.run(lambda: [os.getppid()]))"
    )
    ours, theirs = run("-c", code, check=True).stdout.split()
    assert ours == theirs
