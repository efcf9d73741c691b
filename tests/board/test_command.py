"""``stoker board`` as a person starts it."""

import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from stoker.board.serve import bind
from stoker.cli import main
from support.board_runs import make_run

pytestmark = pytest.mark.process


def said(capsys, *words):
    code = main(["board", *map(str, words)])
    return code, capsys.readouterr().err


def test_a_folder_that_is_not_there_is_named_with_the_nearest_right_one(tmp_path, capsys):
    (tmp_path / "runs").mkdir()
    code, err = said(capsys, tmp_path / "rnus")
    assert code == 2
    assert "there is no folder" in err
    assert f"did you mean '{tmp_path / 'runs'}'?" in err


def test_a_file_is_no_folder_of_runs(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert said(capsys, tmp_path / "file") == (
        2, f"stoker: '{tmp_path / 'file'}' is a file, expected a folder of runs\n")  # fmt: skip


def test_listening_to_other_machines_needs_a_token(tmp_path, capsys):
    code, err = said(capsys, tmp_path, "--host", "0.0.0.0")
    assert code == 2
    assert "pass --token" in err


def test_a_port_that_is_taken_is_reported(tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, err = said(capsys, tmp_path, "--port", port)
    assert code == 2
    assert f"127.0.0.1:{port}: Address already in use" in err


def test_without_a_port_the_next_free_one_is_taken():
    with bind("127.0.0.1", None) as first, bind("127.0.0.1", None) as second:
        assert second.getsockname()[1] > first.getsockname()[1] >= 6780


def test_a_port_that_cannot_be_is_refused(tmp_path, capsys):
    assert "between 0 and 65535, got 70000" in said(capsys, tmp_path, "--port", "70000")[1]


def test_what_has_to_be_installed_is_reported(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("stoker.cli.board.find_spec", lambda name: None)
    code, err = said(capsys, tmp_path)
    assert code == 1
    assert "pip install 'stoker[board]'" in err


@pytest.mark.parametrize("open_stream", [False, True])
def test_ctrl_c_ends_it_quietly_also_with_a_page_open(tmp_path, open_stream):
    make_run(tmp_path, "one")
    command = [sys.executable, "-m", "stoker", "board", str(tmp_path), "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout is not None
    address = process.stdout.readline().split(" is at ")[1].split()[0]
    with urllib.request.urlopen(f"{address}api/runs") as answer:
        assert b'"one"' in answer.read()
    stream = urllib.request.urlopen(f"{address}api/stream") if open_stream else None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    if stream is not None:
        stream.close()
    assert (process.returncode, out, err) == (0, "", "")
