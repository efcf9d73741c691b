"""Streams from an object store: a real server, and a proxy that fails as networks do."""

import json
import os
from itertools import count

import pytest

from stoker import data
from stoker.cli.main import main
from stoker.core.errors import DataError
from stoker.data.streams import cursor, formats, remote
from stoker.storage.blobs import Blobs
from support.stores import SECRET
from support.stream_data import FORMATS, numbers

pytestmark = [pytest.mark.process]
pytest_plugins = ["support.store_fixtures"]

FILES = ["jsonl", "text", "parquet", "webdataset"]
NAMES = count()


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(formats, "BLOCK_BYTES", 4000)
    monkeypatch.setattr("stoker.data.streams.tar.BLOCK_BYTES", 100_000)
    monkeypatch.setattr(cursor, "_CHUNK", 10)


def upload(folder, url):
    for path in sorted(folder.rglob("*")):
        if path.is_file() and ".stoker-index" not in path.parts:
            Blobs(url).put(str(path.relative_to(folder)), path.read_bytes())


@pytest.fixture
def local(tmp_path):
    folder = tmp_path / "local"
    folder.mkdir()
    return folder


@pytest.fixture
def lines(url, local):
    FORMATS["jsonl"](local)
    upload(local, url)
    return url


def lists(batches):
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("name", FILES)
def test_a_stream_from_a_store_has_the_order_of_the_same_files_on_disk(name, url, local):
    FORMATS[name](local)
    upload(local, url)
    expected = numbers(local).batch(8)
    first, second = lists(expected), lists(expected)
    stream = numbers(url).batch(8)
    assert lists(stream) == first
    iterator = iter(stream)
    assert [next(iterator).tolist() for _ in range(40)] == second[:40]
    resumed = numbers(url).batch(8).shard(1, 2)
    resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    assert lists(resumed) == second[41::2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jsonl", "parquet"])
def test_forked_workers_read_from_a_store(name, url, local):
    FORMATS[name](local)
    upload(local, url)
    expected = lists(numbers(local).batch(8))
    for workers in (1, 2):  # a lambda cannot be sent to processes that are not forked
        stream = numbers(url, workers=workers).map(lambda number: number)
        assert lists(stream.batch(8)) == expected


def test_columns_and_long_row_groups_are_read_by_range(url, local, proxy):
    import pyarrow as pa
    from pyarrow import parquet

    rows = 300
    nested = [{"a": [n, n + 1], "b": {"c": str(n)}} for n in range(rows)]
    wide = {"number": list(range(rows)), "nested": nested}
    wide |= {f"x{i}": [os.urandom(100) for _ in range(rows)] for i in range(8)}
    parquet.write_table(pa.table(wide), local / "a.parquet", row_group_size=100)
    upload(local, url)
    chosen = list(data.stream(url, columns=["number", "nested"]))
    assert chosen == [{"number": n, "nested": nested[n]} for n in range(rows)]
    assert list(data.stream(url)) == list(data.stream(local))
    with pytest.raises(ValueError, match="no column 'nmber': it has number"):
        data.stream(url, columns=["nmber"])


def test_the_index_is_kept_on_disk_and_verified_by_entity_tags(lines, proxy, local):
    expected = list(numbers(lines))
    proxy.requests.clear()
    numbers(lines)
    assert {method for method, _ in proxy.requests} == {"GET", "HEAD"}
    assert all("list-type" in path for method, path in proxy.requests if method == "GET")
    changed = (local / "1.jsonl").read_bytes().replace(b"x", b"y")
    Blobs(lines).put("1.jsonl", changed)
    proxy.requests.clear()
    assert list(numbers(lines)) == expected
    read = [path for method, path in proxy.requests if method == "GET" and "list" not in path]
    assert sum("1.jsonl" in path for path in read) > sum("0.jsonl" in path for path in read)


def test_patterns_folders_and_single_objects_are_found(url):
    blobs = Blobs(url)
    for name in ("a b/0.txt", "a b/1.txt", "c/d/2.txt", "c/.hidden/3.txt", "c/4.csv", "ü.txt"):
        blobs.put(name, name.encode())
    found = {
        "": ["a b/0.txt", "a b/1.txt", "c/d/2.txt", "ü.txt"],
        "/a b": ["a b/0.txt", "a b/1.txt"],
        "/a b/1.txt": ["a b/1.txt"],
        "/*/[01].txt": ["a b/0.txt", "a b/1.txt"],
        "/**/*.txt": ["a b/0.txt", "a b/1.txt", "c/d/2.txt", "ü.txt"],
        "/c/d/**": ["c/d/2.txt"],
        "/c/.hidden/*": ["c/.hidden/3.txt"],
    }
    for part, names in found.items():
        assert list(data.stream(url + part)) == names
    wrong = {"/c/*.csv": "format of", "/c/.hidden/*.md": "no object matches", "/x": "no object of"}
    wrong |= {"/c/**": "format of", "/c/.hidden/z": "no object of"}
    for part, message in wrong.items():
        with pytest.raises((ValueError, OSError), match=message):
            data.stream(url + part)
    with pytest.raises(ValueError, match=r"several places \(disk, s3://bucket\)"):
        data.stream([url, __file__], format="text")
    with pytest.raises(ValueError, match="expected a local path or a URL"):
        data.stream("https://server/a.txt")


def test_requests_that_fail_are_repeated(lines, proxy):
    expected = list(numbers(lines))
    faults = count()
    kinds = ("503", "drop", "lose")
    proxy.fault = lambda *_: kinds[n // 4 % 3] if (n := next(faults)) % 4 == 1 else None
    assert list(numbers(lines)) == expected
    assert next(faults) > 8


def test_a_store_that_is_away_ends_the_stream_and_is_no_corrupt_record(
    lines, proxy, monkeypatch, caplog
):
    stream = numbers(lines, on_error="skip").batch(4)
    monkeypatch.setattr(remote._bucket(lines)[0], "patience", 0.5)
    iterator = iter(stream)
    next(iterator)
    proxy.fault = lambda *_: "503"
    with pytest.raises(OSError, match="it answered 503") as error:
        list(iterator)
    proxy.fault = lambda *_: None
    assert stream.skipped == 0
    assert SECRET not in str(error.value) + caplog.text
    resumed = numbers(lines, on_error="skip").batch(4)
    resumed.load_state_dict(stream.state_dict())
    before = lists(numbers(lines).batch(4))
    rest = lists(resumed)
    assert rest == before[len(before) - len(rest) :]


@pytest.mark.parametrize("name", ["jsonl", "parquet"])
def test_a_stream_reads_on_when_the_store_is_back(name, url, local, proxy, monkeypatch):
    FORMATS[name](local)
    upload(local, url)
    stream = numbers(url, shuffle=0).batch(4)
    monkeypatch.setattr(remote._bucket(url)[0], "patience", 0.5)
    proxy.fault = lambda *_: "503"
    with pytest.raises(OSError, match="it answered 503"):
        list(stream)
    proxy.fault = lambda *_: None
    assert lists(stream) == lists(numbers(local, shuffle=0).batch(4))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_object_that_changes_while_a_stream_reads_it_is_reported(lines, local, on_error):
    records = iter(numbers(lines, on_error=on_error))
    next(records)
    for path in local.glob("*.jsonl"):
        Blobs(lines).put(path.name, path.read_bytes().replace(b"x", b"y"))
    with pytest.raises(DataError, match=r"jsonl' has changed since the stream was made"):
        list(records)


def test_a_changed_object_is_refused_when_a_position_is_loaded(lines, local):
    stream = numbers(lines).batch(8)
    next(iter(stream))
    Blobs(lines).put("1.jsonl", (local / "1.jsonl").read_bytes().replace(b"x", b"y"))
    Blobs(lines).put("3.jsonl", b'{"number": 9}\n')
    with pytest.raises(DataError, match=r"'3\.jsonl' was added, '1\.jsonl' was rewritten"):
        numbers(lines).batch(8).load_state_dict(stream.state_dict())


def test_commands_list_index_and_check_a_store(lines, capsys):
    assert main(["data", "ls", lines, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["path"], row["state"]) for row in rows][:1] == [
        (f"{lines}/0.jsonl", "not indexed")
    ]
    assert main(["data", "index", f"{lines}/*.jsonl"]) == 0
    assert "700" in capsys.readouterr().out
    Blobs(lines).put("2.jsonl", b'{"number": 1}\n{"number"\n')
    assert main(["data", "ls", lines]) == 0
    assert capsys.readouterr().out.count("changed") == 1
    assert main(["data", "check", lines]) == 1
    found = capsys.readouterr()
    assert f"'{lines}/2.jsonl' at byte 14 is corrupt" in found.out
    assert main(["data", "ls", f"{lines}/nothing"]) == 2
    assert "no object of this name" in capsys.readouterr().err
    assert SECRET not in found.out + found.err
