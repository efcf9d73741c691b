"""The local disk: what is written is complete, what is read is not copied."""

import os
import stat
from pathlib import Path

import pytest

from stoker.storage import LocalStorage, atomic_file, format_size, write_atomic
from stoker.storage.local import replace_link
from support.server import run


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path / "folder")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_read_as_it_was_written(storage):
    storage.create()
    record = storage.write("a", [b"12", memoryview(b"345")])
    assert (record.size, record.xxh3_128) == (storage.size("a"), storage.checksum("a"))
    assert storage.read("a") == b"12345"
    assert storage.list() == ["a"]


def test_a_file_is_never_written_twice(storage):
    storage.create()
    storage.write("a", [b"1"])
    with pytest.raises(FileExistsError):
        storage.write("a", [b"2"])


def test_absent_names_have_no_size_and_an_absent_folder_is_empty(storage):
    assert storage.list() == []
    assert storage.size("a") is None
    assert storage.below("deep/er").size("a") is None


@pytest.mark.parametrize("start", [0, 1, 4095, 4096, 4097, 9000])
@pytest.mark.parametrize("length", [0, 1, 5000])
def test_any_range_is_read(storage, start, length):
    data = bytes(range(256)) * 60
    storage.create()
    storage.write("a", [data])
    assert bytes(storage.read_range("a", start, length)) == data[start : start + length]


def test_a_range_is_a_private_map(storage):
    storage.create()
    storage.write("a", [b"12345"])
    part = storage.read_range("a", 1, 3)
    part[0] = ord("x")
    assert bytes(part) == b"x34"
    assert storage.read("a") == b"12345"


def test_a_range_beyond_the_end_is_an_error(storage):
    storage.create()
    storage.write("a", [b"12345"])
    with pytest.raises(ValueError, match="shorter than 6 bytes"):
        storage.read_range("a", 3, 3)


def test_a_published_folder_replaces_another_only_where_that_is_kept(storage):
    for name in ("one", "two", "three"):
        storage.below(name).create()
        storage.below(name).write("name", [name.encode()])
    with pytest.raises(FileExistsError, match="two' already exists"):
        storage.publish("one", "two")
    storage.publish("one", "two", replaced="old")
    storage.publish("three", "four", replaced="unused")
    assert storage.list() == ["four", "old", "two"]
    assert (storage.read("two/name"), storage.read("old/name")) == (b"one", b"two")


def test_a_file_and_a_folder_are_deleted(storage):
    storage.below("sub").create()
    storage.below("sub").write("a", [b"1"])
    storage.write("b", [b"2"])
    storage.delete("sub")
    storage.delete("b")
    assert storage.list() == []


def test_an_atomic_file_appears_complete(tmp_path):
    path = tmp_path / "new" / "file.txt"
    with atomic_file(path) as temporary:
        temporary.write_text("text")
        assert temporary.parent == path.parent
        assert temporary.suffix == ".txt"
        assert not path.exists()
    assert names(path.parent) == ["file.txt"]
    assert path.read_text() == "text"


@pytest.mark.parametrize("durable", [True, False])
def test_an_error_leaves_the_old_file(tmp_path, durable):
    path = tmp_path / "file"
    write_atomic(path, "old", durable=durable)
    with pytest.raises(RuntimeError), atomic_file(path, durable=durable) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert names(tmp_path) == ["file"]
    assert path.read_text() == "old"


def test_others_may_read_what_a_library_made_private(tmp_path):
    with atomic_file(tmp_path / "file") as temporary:
        temporary.touch(mode=0o600)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~mask


def test_a_link_to_a_file_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "target").touch()
    write_atomic(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "text"


@pytest.mark.process
def test_standard_output_is_written_and_not_replaced():
    code = """
from pathlib import Path
from stoker.storage import write_atomic
write_atomic(Path("/dev/stdout"), "text")
"""
    found = run("-c", code, check=True)
    assert found.stdout == "text"
    assert Path("/dev/stdout").is_symlink()


def test_a_link_is_changed_at_once_and_a_folder_is_kept(tmp_path):
    for name in ("one", "two", "folder"):
        (tmp_path / name).mkdir()
    for target in ("one", "one", "two"):
        replace_link(tmp_path / "link", tmp_path / target)
        assert os.readlink(tmp_path / "link") == target
    replace_link(tmp_path / "folder", tmp_path / "one")
    assert not (tmp_path / "folder").is_symlink()
    assert names(tmp_path) == ["folder", "link", "one", "two"]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (123e6, "123 MB"), (2e13, "20.0 TB")],
)
def test_sizes_are_formatted(size, text):
    assert format_size(size) == text


def test_a_file_that_was_replaced_is_mapped_again(storage):
    storage.create()
    for content in (b"12345", b"abcdefg", b""):
        write_atomic(storage.folder / "a", content)
        assert bytes(storage.read_range("a", 0, len(content))) == content
