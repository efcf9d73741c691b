"""A metrics.jsonl that grows is read once, and what a resumed run cuts off is forgotten."""

import os
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.board.runs import remove_old_indexes
from stoker.rundir import metrics_index as series
from stoker.rundir.metrics_index import MetricsFile
from support.board_runs import rows


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def reader(path, cache=None):
    return MetricsFile(lambda: os.open(path, os.O_RDONLY), cache)


def steps(file):
    return file.columns.head["step"].view.tolist()


def test_every_byte_is_read_once_while_the_file_grows(path):
    file = reader(path)
    for start in range(0, 1000, 50):
        with path.open("a") as out:
            out.write(rows(50, start))
        assert file.refresh()
        assert not file.refresh()
    assert file.bytes_read == path.stat().st_size
    assert np.allclose(file.columns.values["train/loss"].view, 1 / np.arange(1, 1001))
    assert len(file.columns.values["val/accuracy"]) == 100


def test_a_torn_line_waits_until_it_is_complete(path):
    complete = rows(3)
    path.write_text(complete[:-20])
    file = reader(path)
    file.refresh()
    assert steps(file) == [1, 2]
    path.write_text(complete)
    file.refresh()
    assert steps(file) == [1, 2, 3]


@pytest.mark.parametrize("kept", [0, 1, 700, 3999])
def test_what_a_resumed_run_cuts_off_is_forgotten(path, kept, monkeypatch):
    monkeypatch.setattr(series, "CHUNK", 4096)
    monkeypatch.setattr(series, "_SPACING", 4096)
    path.write_text(rows(4000))
    file = reader(path)
    file.refresh(60)
    before = file.bytes_read
    path.write_text(rows(kept) + rows(4000 - kept, kept, other=2.0))
    assert file.refresh(60)
    assert steps(file) == steps_of(path)
    assert len(file.columns.values["other"]) == 4000 - kept
    if kept == 3999:
        assert file.bytes_read - before < 3 * 4096


def steps_of(path):
    file = reader(path)
    file.refresh(60)
    return steps(file)


def test_a_file_that_is_removed_is_forgotten(path):
    path.write_text(rows(3))
    file = reader(path)
    file.refresh()
    path.unlink()
    assert file.refresh()
    assert len(file.columns) == 0


def test_lines_that_are_no_rows_are_counted_and_left_out(path):
    path.write_text(rows(1) + 'no\n[1]\n{"step": -1}\n{"step": "x"}\n\n' + rows(1, 1))
    file = reader(path)
    file.refresh()
    assert steps(file) == [1, 2]
    assert file.columns.invalid_lines == 4


def test_a_line_that_never_ends_is_passed_over(path, monkeypatch):
    monkeypatch.setattr(series, "CHUNK", 1024)
    path.write_text(rows(1) + "x" * 5000 + "\n" + rows(1, 1))
    file = reader(path)
    file.refresh(60)
    assert steps(file) == [1, 2]


def test_words_for_numbers_are_numbers(path):
    path.write_text('{"step": 1, "a": "NaN", "b": "-Infinity", "c": [1], "d": true}\n')
    file = reader(path)
    file.refresh()
    found = {name: float(column.view[0]) for name, column in file.columns.values.items()}
    assert np.isnan(found["a"])
    assert found["b"] == -np.inf
    assert np.isnan(found["c"])
    assert found["d"] == 1.0


def test_an_index_in_the_cache_saves_reading(path, tmp_path, monkeypatch):
    monkeypatch.setattr(series, "_WORTH_SAVING", 1)
    path.write_text(rows(500))
    first = reader(path, tmp_path / "cache" / "one.index")
    first.refresh()
    first.save_index()
    with path.open("a") as out:
        out.write(rows(10, 500))
    second = reader(path, tmp_path / "cache" / "one.index")
    second.refresh()
    assert steps(second) == steps_of(path)
    assert second.bytes_read == len(rows(10, 500))


@given(st.binary(max_size=300))
def test_a_damaged_cache_is_passed_over(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "metrics.jsonl").write_text(rows(5))
    (folder / "one.index").write_bytes(data)
    file = reader(folder / "metrics.jsonl", folder / "one.index")
    file.refresh()
    assert len(file.columns) == 5


def test_a_large_file_is_read_in_parts(path, monkeypatch):
    monkeypatch.setattr(series, "CHUNK", 1024)
    path.write_text(rows(200))
    file = reader(path)
    file.refresh(0)
    assert 0 < file.fraction_read < 1
    while not file.complete:
        file.refresh(0)
    assert len(file.columns) == 220


def test_an_index_nobody_used_for_long_is_removed(tmp_path):
    for name, age in (("old.index", 40), ("new.index", 1), ("other.txt", 40)):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (time.time() - age * 86400,) * 2)
    remove_old_indexes(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"new.index", "other.txt"}
