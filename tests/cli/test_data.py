"""``stoker data``: list, index and check the files of a stream."""

import json

import pytest

from stoker.cli import main


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n{"a": \n')
    return tmp_path


def states(capsys):
    lines = capsys.readouterr().out.splitlines()[1:-1]
    return {line.split()[0]: line.split("  ")[-1].strip() for line in lines}


def test_ls_shows_what_is_indexed_and_what_has_changed(files, capsys):
    assert main(["data", "ls", "."]) == 0
    assert states(capsys) == {"bad.jsonl": "not indexed", "good.jsonl": "not indexed"}
    assert main(["data", "index", "good.jsonl"]) == 0
    assert states(capsys) == {"good.jsonl": "indexed"}
    (files / "good.jsonl").write_text('{"a": 1}\n')
    main(["data", "ls", "."])
    assert states(capsys) == {"bad.jsonl": "not indexed", "good.jsonl": "changed"}


def test_check_names_each_corrupt_record_and_fails(files, capsys):
    assert main(["data", "check", "good.jsonl"]) == 0
    assert main(["data", "check", "*.jsonl", "--json"]) == 1
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()[2:]]
    assert [len(one["corrupt"]) for one in found] == [1, 0]
    assert "bad.jsonl' at byte 9 is corrupt" in found[0]["corrupt"][0]


def test_a_damaged_archive_is_shown_by_index(files, capsys):
    (files / "cut.tar").write_bytes(b"x" * 700)
    assert main(["data", "index", "cut.tar"]) == 1
    assert "cannot be read from byte 0" in capsys.readouterr().out


@pytest.mark.parametrize("words", ["ls nothing", "check a.zip", "index . --format csv", ""])
def test_wrong_sources_are_usage_errors(files, capsys, words):
    (files / "a.zip").write_bytes(b"")
    assert main(["data", *words.split()]) == 2
    assert words == "" or capsys.readouterr().err.startswith("stoker: ")
