"""Files that nobody here wrote: every kind is read correctly, or refused with its name."""

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile

import pytest

from stoker import data
from stoker.core.errors import DataError


def tar(path, members, **options):
    with tarfile.open(path, "w", **options) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


# Text and JSON lines


@pytest.mark.parametrize("lines", [["one", "", "drei ü", "四 🎈", "x" * 5000], ["a"], ["", ""]])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("closed", [True, False])
def test_lines_of_every_kind_are_those_of_python(tmp_path, lines, end, mark, closed):
    path = tmp_path / "a folder" / "with spaces.txt"
    path.parent.mkdir()
    path.write_bytes(mark + (end.join(lines) + (end if closed else "")).encode())
    expected = path.read_text("utf-8-sig").splitlines()
    assert list(data.stream(path.parent)) == expected
    assert sorted(data.stream(path, shuffle=True)) == sorted(expected)


def test_a_carriage_return_at_the_end_of_a_file_is_an_empty_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\n\r")
    assert list(data.stream(tmp_path)) == ["one", ""]


def test_empty_files_have_no_records_and_a_source_needs_one(tmp_path):
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match="has no records, expected at least one"):
        data.stream(tmp_path)
    (tmp_path / "b.txt").write_text("one\n")
    assert list(data.stream(tmp_path)) == ["one"]


def test_json_lines_of_every_kind_are_those_of_json(tmp_path):
    values = [{"a": [1, {"b": None}]}, "text\u2028inside", 1.5e300, True, [], -0.0, "ü"]
    texts = [json.dumps(value, ensure_ascii=n % 2 == 0) for n, value in enumerate(values)]
    path = tmp_path / "a.jsonl"
    path.write_text("\ufeff" + " \r\n".join(texts) + "\r\n \r\n\n", "utf-8", newline="")
    assert list(data.stream(path)) == values


@pytest.mark.parametrize(
    ("pack", "kind"),
    [(gzip.compress, "gzip"), (bz2.compress, "bzip2"), (lzma.compress, "xz"), (None, "Zstandard")],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.tar", "a.jsonl.gz", "b.tar.zst"])
def test_compressed_files_are_refused_whatever_their_name(tmp_path, pack, kind, name):
    content = b'{"a": 1}\n' * 100
    (tmp_path / name).write_bytes(pack(content) if pack else b"\x28\xb5\x2f\xfd" + content)
    format = "webdataset" if ".tar" in name else "jsonl"
    for options in ({}, {"format": format}, {"format": format, "on_error": "skip"}):
        with pytest.raises(ValueError, match="compressed"):
            data.stream(tmp_path / name, **options)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_text_of_another_encoding_is_refused(tmp_path, encoding):
    (tmp_path / "a.txt").write_text("one\ntwo\n", encoding)
    with pytest.raises(ValueError, match=r"UTF-(16|32).*expected UTF-8"):
        data.stream(tmp_path, on_error="skip")


def test_a_file_that_may_not_be_read_is_an_error_and_not_corrupt(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("one\n")
    stream = data.stream(tmp_path, on_error="skip")

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(OSError, match="Input/output error"):
        list(stream)


def test_a_file_that_grows_is_reported(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    stream = data.stream(tmp_path)
    with path.open("a") as file:
        file.write("three\n")
    with pytest.raises(DataError, match="has changed since the stream was made"):
        list(stream)
    assert list(data.stream(tmp_path)) == ["one", "two", "three"]


# Parquet


def test_rows_of_every_type_are_those_of_arrow(tmp_path):
    import datetime
    import decimal

    import pyarrow as pa
    from pyarrow import parquet

    rows = 90
    columns = {
        "int": pa.array([None if n % 7 == 0 else n for n in range(rows)], pa.int32()),
        "whole": pa.array(range(rows), pa.uint64()),
        "float": pa.array([n / 7 for n in range(rows)], pa.float32()),
        "half": pa.array([n % 2 == 0 for n in range(rows)]),
        "text": pa.array([None if n % 5 == 0 else "ü" * n for n in range(rows)]),
        "large": pa.array([str(n) for n in range(rows)], pa.large_string()),
        "bytes": pa.array([os.urandom(n) for n in range(rows)]),
        "ids": pa.array([list(range(n % 4)) for n in range(rows)], pa.list_(pa.int32())),
        "gaps": pa.array([None if n % 3 == 0 else [n, None] for n in range(rows)]),
        "words": pa.array([["a", "b"][: n % 3] for n in range(rows)]),
        "deep": pa.array([{"x": [{"y": n}], "z": None} for n in range(rows)]),
        "map": pa.array([[("k", n)] for n in range(rows)], pa.map_(pa.string(), pa.int64())),
        "time": pa.array([datetime.datetime(2026, 1, 1, 0, 0, n % 60) for n in range(rows)]),
        "decimal": pa.array([decimal.Decimal(n) / 4 for n in range(rows)]),
        "nothing": pa.nulls(rows),
        "kind": pa.array(["a", "b", "c"] * (rows // 3)).dictionary_encode(),
        "fixed": pa.array([[n, n + 1] for n in range(rows)], pa.list_(pa.int64(), 2)),
    }
    table = pa.table(columns)
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=20)
    expected = table.to_pylist()
    found = list(data.stream(tmp_path))
    assert found == expected
    assert [[type(v) for v in row.values()] for row in found] == [
        [type(v) for v in row.values()] for row in expected
    ]
    shuffled = list(data.stream(tmp_path, shuffle=True).shard(1, 3))
    assert all(row in expected for row in shuffled)
    assert len(shuffled) == rows // 3


@pytest.mark.parametrize("kind", ["flat", "nested", "view"])
def test_rows_come_in_the_same_order_read_together_or_by_several_processes(tmp_path, kind):
    import pyarrow as pa
    from pyarrow import parquet

    types = {"flat": pa.int64(), "nested": pa.list_(pa.int64()), "view": pa.string_view()}
    values = [{"flat": n, "nested": [n], "view": f"word {n}"}[kind] for n in range(100)]
    table = pa.table({"n": pa.array(values, types[kind])})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=16)
    together = [row["n"] for row in data.stream(tmp_path, shuffle=True, seed=1)]
    assert sorted(map(str, together)) == sorted(map(str, values))
    for rank in range(2):
        own = data.stream(tmp_path, shuffle=True, seed=1).shard(rank, 2)
        assert [row["n"] for row in own] == together[rank::2]


def test_a_value_that_is_no_text_is_named_among_small_rows(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    words = pa.array([b"one", b"\xff\xfe", b"three"]).view(pa.string())
    parquet.write_table(pa.table({"word": words, "n": [1, 2, 3]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet' at row 1 of row group 0 is corrupt: Unicode"):
        list(data.stream(tmp_path))
    stream = data.stream(tmp_path, on_error="skip", shuffle=True)
    assert sorted(row["n"] for row in stream) == [1, 3]
    assert stream.skipped == 1


def test_files_whose_columns_differ_keep_their_own(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"a": [1]}), tmp_path / "0.parquet")
    parquet.write_table(pa.table({"a": [2], "b": ["x"]}), tmp_path / "1.parquet")
    assert list(data.stream(tmp_path)) == [{"a": 1}, {"a": 2, "b": "x"}]


def test_two_columns_of_the_same_name_are_refused(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    parquet.write_table(table, tmp_path / "0.parquet")
    with pytest.raises(DataError, match="two columns are called 'a'"):
        data.stream(tmp_path)
    with pytest.raises(ValueError, match="columns is empty"):
        data.stream(tmp_path, columns=[])


# Tar


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_archives_with_long_and_foreign_names_are_those_of_tarfile(tmp_path, kind):
    names = ["a b.txt", "deep/" * 12 + "n.txt", "x.tar.gz"]
    if kind != tarfile.USTAR_FORMAT:
        names += ["é" * 90 + ".txt", "long/" * 60 + "m.TXT"]
    members = {name: name.encode() * 3 for name in names}
    tar(tmp_path / "a.tar", members, format=kind)
    found = list(data.stream(tmp_path))
    assert [{k: v for k, v in one.items() if k != "__key__"} for one in found] == [
        {name.rpartition("/")[2].partition(".")[2].lower(): content}
        for name, content in members.items()
    ]


def test_global_pax_headers_and_folders_are_left_out(tmp_path):
    with tarfile.open(
        tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x"}
    ) as archive:
        folder = tarfile.TarInfo("d")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        info = tarfile.TarInfo("d/a.txt")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
    assert list(data.stream(tmp_path)) == [{"__key__": "d/a", "txt": b"abc"}]


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_links_whose_contents_would_be_missing_are_refused(tmp_path, kind):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo("a.txt")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("b.txt")
        link.type, link.linkname = kind, "a.txt"
        archive.addfile(link)
    with pytest.raises(DataError, match=r"'b\.txt' is a link, expected regular files"):
        data.stream(tmp_path)


# Hugging Face


def test_images_of_a_dataset_are_decoded(tmp_path):
    import datasets
    from PIL import Image

    datasets.disable_progress_bars()
    images = [Image.new("RGB", (4, 4), (n, 0, 0)) for n in range(20)]
    features = datasets.Features({"image": datasets.Image(), "n": datasets.Value("int64")})
    found = datasets.Dataset.from_dict({"image": images, "n": list(range(20))}, features=features)
    stream = data.stream(found, shuffle=8, seed=1)
    rows = {row["n"]: row["image"].getpixel((0, 0)) for row in stream}
    assert rows == {n: (n, 0, 0) for n in range(20)}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_of_any_length_are_read(tmp_path, end):
    lines = ["", "ä", "b" * 70, "", "ü" * 9, "c\rd", "€" * 40, "e"]
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + end.join(lines).encode())
    assert list(data.stream(tmp_path / "a.txt")) == lines
    (tmp_path / "b.txt").write_bytes(end.join([*lines, ""]).encode())
    assert list(data.stream(tmp_path / "b.txt")) == lines


# Names


def test_a_folder_is_read_completely_or_refused(tmp_path):
    source, other = tmp_path / "x [1]", tmp_path / "other"
    for folder in (source, other, source / ".hidden", source / "d.jsonl"):
        folder.mkdir()
    (source / "A.JSONL").write_text("1\n")
    (source / "README.md").write_text("not data\n")
    (source / ".hidden" / "a.jsonl").write_text("9\n")
    (other / "b.jsonl").write_text("2\n")
    (source / "linked").symlink_to(other)  # also leads back to the source
    (other / "loop").symlink_to(source)
    assert list(data.stream(source)) == [1, 2]
    assert list(data.stream(f"{source}/*.JSONL")) == [1]

    for name, make, message in (
        ("same.jsonl", lambda path: path.symlink_to(source / "A.JSONL"), "are the same file"),
        ("gone.jsonl", lambda path: path.symlink_to("nowhere"), "a link to 'nowhere', which is"),
        ("pipe.jsonl", os.mkfifo, "is not a regular file"),
        ("more.jsonl.gz", lambda path: path.touch(), "more.jsonl.gz' is compressed"),
    ):
        make(source / name)
        with pytest.raises((ValueError, OSError), match=message):
            data.stream(source)
        (source / name).unlink()


def test_braces_stand_for_names(tmp_path):
    for n in range(8, 12):
        (tmp_path / f"part-{n:03}.txt").write_text(f"{n}\n")
    assert list(data.stream(tmp_path / "part-{008..010}.txt")) == ["8", "9", "10"]
    assert list(data.stream(str(tmp_path / "part-{011,009}.*"))) == ["11", "9"]
    with pytest.raises(FileNotFoundError, match=r"there is no '.*part-007\.txt'"):
        data.stream(tmp_path / "part-{007..010}.txt")
    with pytest.raises(ValueError, match="stands for more than 1,000,000 names"):
        data.stream(tmp_path / "{1..9999999}.txt")
    (tmp_path / "{1,2}.txt").write_text("own\n")
    assert list(data.stream(tmp_path / "{1,2}.txt")) == ["own"]


# Contents


@pytest.mark.parametrize("content", ["\ufeff", "\ufeff\n", "\ufeff\r\n \n"])
def test_a_mark_of_utf8_is_no_record_of_json_lines(tmp_path, content):
    (tmp_path / "a.jsonl").write_bytes(content.encode())
    (tmp_path / "b.jsonl").write_bytes(f"{content}1\n".encode())
    assert list(data.stream(tmp_path)) == [1]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_is_refused(tmp_path, encoding):
    (tmp_path / "a.txt").write_bytes("one\ntwo\n".encode(encoding))
    with pytest.raises(ValueError, match="seems to be UTF-16, expected UTF-8"):
        data.stream(tmp_path)


def test_columns_are_exactly_those_of_every_file(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"a": [{"b": 1}], "a.b": [2]}), tmp_path / "1.parquet")
    assert list(data.stream(tmp_path, columns=["a.b"])) == [{"a.b": 2}]
    parquet.write_table(pa.table({"a.b": [4], "c": [3]}), tmp_path / "2.parquet")
    files = [tmp_path / "2.parquet", tmp_path / "1.parquet"]
    skipping = data.stream(files, columns=["c", "a.b"], on_error="skip")
    assert (list(skipping), skipping.skipped) == ([{"c": 3, "a.b": 4}], 1)
    with pytest.raises(DataError, match=r"1\.parquet' at row 0 .* it has no column 'c'"):
        list(data.stream(files, columns=["c"]))
    with pytest.raises(ValueError, match="columns lists 'c' more than once"):
        data.stream(tmp_path, columns=["c", "c"])


def test_members_that_webdataset_leaves_out_are_left_out(tmp_path):
    names = ["README", ".hidden", "._0.txt", "0.txt", "a.b/.DS_Store", "__info__", "./1.c.txt"]
    tar(tmp_path / "a.tar", {name: name.encode() for name in names})
    assert list(data.stream(tmp_path)) == [
        {"__key__": "0", "txt": b"0.txt"},
        {"__key__": "./1", "c.txt": b"./1.c.txt"},
    ]


def test_joined_archives_are_refused(tmp_path):
    tar(tmp_path / "a.tar", {"0.txt": b"a"})
    path = tmp_path / "a.tar"
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(DataError, match="from byte 1024: more data follows its end mark"):
        data.stream(tmp_path)
    assert len(list(data.stream(tmp_path, on_error="skip"))) == 1


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"b": [1]}, "has the fields 'b', and pack.. needs 'a'"),
        ([1], "is a list, and pack.. needs 'a'"),
        ({"a": "text"}, "holds a str for pack"),
        ({"a": [1.5]}, "holds a list of float for pack"),
        ({"a": [[1], [1, 2]]}, "holds a list of list for pack"),
        ({"a": [2**64 - 1]}, "holds a list of int for pack"),
    ],
)
def test_a_record_without_tokens_is_corrupt(tmp_path, record, message):
    lines = [{"a": [1, 2, 3]}, record, {"a": [4]}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DataError, match=f"the record at position 1 of the epoch {message}"):
        list(data.stream(tmp_path).pack(2, field="a"))
    skipping = data.stream(tmp_path, on_error="skip").pack(2, field="a")
    assert [one.tolist() for one in skipping] == [[1, 2], [3, 4]]
    assert skipping.skipped == 1


@pytest.mark.parametrize("records", ["[1]\n[1, 2]\n", '{"a": 1}\n{"b": 1}\n', "1\nnull\n"])
def test_records_that_cannot_be_combined_are_reported(tmp_path, records):
    (tmp_path / "a.jsonl").write_text(records)
    with pytest.raises(DataError, match=r"cannot be combined: .* or pass collate= to batch\(\)"):
        list(data.stream(tmp_path).batch(2))


def test_a_state_of_more_data_is_continued_at_the_end(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    stream = data.stream(tmp_path).batch(1)
    rows = iter(stream)
    state = [next(rows) and stream.state_dict() for _ in range(2)][-1]
    (tmp_path / "a.txt").write_text("one\n")
    shorter = data.stream(tmp_path, on_change="continue").batch(1)
    shorter.load_state_dict(state)
    assert list(shorter) == []
    assert list(shorter) == [["one"]]
    with pytest.raises(ValueError, match="the state has no 'epoch', expected what state_dict"):
        shorter.load_state_dict({})


def test_the_data_is_checked_without_a_position(tmp_path):
    from stoker.data.streams.state import check_data, data_state

    (tmp_path / "a.txt").write_text("one\n")
    plan = data.stream(tmp_path).plan
    check_data(plan, data_state(plan))  # what a checkpoint before the first step holds
