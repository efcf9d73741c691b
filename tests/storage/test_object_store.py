"""Checkpoints in an object store: a real server, and a proxy that fails as networks do."""

import os
import random
from itertools import count

import pytest
import torch

from stoker.checkpoint import CheckpointError, Checkpoints
from stoker.storage import blobs as blobs_module
from stoker.storage import lock, open_storage
from stoker.storage.blobs import Blobs
from stoker.storage.object_store import INDEX, ObjectStorage
from support.checkpoint_states import number_in, own, state
from support.stores import SECRET

pytestmark = [pytest.mark.process]
pytest_plugins = ["support.store_fixtures"]

NAMES = count()


def keys(url):
    return [one.key for one in Blobs(url).scan() if not one.key.startswith(".lock")]


def referenced(url):
    """Return the parts that the indexes of a folder refer to."""
    storage, found = open_storage(url), set()
    for name in storage.list():
        found |= {f"objects/{key}" for key in storage.below(name).contents()}
    return found


def test_a_checkpoint_is_saved_replaced_pruned_and_loaded(url):
    with Checkpoints(url, keep=2) as checkpoints:
        for step in (1, 2, 3, 3):
            checkpoints.save(step, state(step), own(), {"epoch": step})
        checkpoints.wait()
        assert [path.name for path in checkpoints.list()] == ["step-00000002", "step-00000003"]
        found = checkpoints.load(checkpoints.newest())
    assert number_in(found) == 3
    assert torch.equal(found.own["torch"], own()["torch"])
    assert found.info == {"epoch": 3}
    indexes = [f"step-0000000{step}/{INDEX}" for step in (2, 3)]
    assert {*keys(url)} == {*indexes} | referenced(url)  # nothing is left over


def test_of_two_processes_that_publish_a_step_one_is_refused(url):
    first, second = (ObjectStorage(url, Blobs(url)) for _ in range(2))
    for name, storage in (("a", first), ("b", second)):
        storage.below(name).write("file", [name.encode()])
    first.publish("a", "step")
    with pytest.raises(FileExistsError):
        second.publish("b", "step")
    assert first.below("step").read("file") == b"a"


def test_a_conditional_write_whose_answer_was_lost_counts_as_done(url, proxy):
    faults = iter(["lose"])
    proxy.fault = lambda method, path: next(faults, None) if method == "PUT" else None
    store = Blobs(url)
    assert store.create("a", b"1")
    assert not store.create("a", b"2")
    assert store.get("a") == b"1"


def test_a_store_has_one_owner_until_it_is_silent(url, monkeypatch):
    lost = []
    lease = open_storage(url).lease(lost.append)
    with pytest.raises(CheckpointError, match="is in use by process"):
        open_storage(url).lease()
    monkeypatch.setattr(lock, "PERIOD", 0.2)
    monkeypatch.setattr(lock.Owner, "is_running", lambda self: None)  # as from another machine
    other = open_storage(url).lease()
    with pytest.raises(CheckpointError, match="has lost"):
        lease.check()
    other.release()
    open_storage(url).lease().release()


@pytest.mark.parametrize("kind", ["503", "drop", "lose", "slow"])
def test_requests_that_fail_are_repeated(url, proxy, kind):
    number = count(1)
    proxy.fault = lambda method, path: kind if next(number) % 5 == 0 else None
    before = random.getstate()
    with Checkpoints(url, keep=1) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, state(step), own(), wait=True)
        assert number_in(checkpoints.load(checkpoints.newest())) == 2
        assert len(checkpoints.list()) == 1
    assert next(number) > 20
    assert random.getstate() == before  # training may draw from it meanwhile


@pytest.mark.parametrize("key", ["a//b.txt", "../a"])
def test_a_name_that_no_store_takes_is_refused_at_once(url, proxy, monkeypatch, key):
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it is tried again"))
    before = len(proxy.requests)
    with pytest.raises(OSError, match="not a name of an object") as found:
        Blobs(url).put(key, b"data")
    assert found.value.filename == f"{url}/{key}"
    assert len(proxy.requests) == before


def test_a_fault_of_the_local_disk_is_not_one_of_the_store(url, monkeypatch, tmp_path):
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it is tried again"))
    store = Blobs(url)
    with pytest.raises(FileNotFoundError, match="missing"):
        store.put_file("a", tmp_path / "missing")
    store.put("a", b"data")
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        store.get_file("a", tmp_path / "file" / "below")


def test_a_checkpoint_with_a_cut_upload_is_withdrawn_and_saved_again(url, proxy):
    with Checkpoints(url) as checkpoints:
        checkpoints.save(1, state(1), wait=True)
        cut = iter(["cut"])
        is_part = lambda method, path: method == "PUT" and "/objects/" in path
        proxy.fault = lambda method, path: next(cut, None) if is_part(method, path) else None
        with pytest.raises(CheckpointError, match="did not read back as written"):
            checkpoints.save(2, state(2), wait=True)
        assert next(cut, None) is None
        assert [path.name for path in checkpoints.list()] == ["step-00000001"]
        checkpoints.save(2, state(2), wait=True)
        assert number_in(checkpoints.load(checkpoints.newest())) == 2


def test_a_store_that_is_away_is_reported_without_secrets(url, proxy, monkeypatch, caplog):
    monkeypatch.setattr(blobs_module, "_REPORT_AFTER", 0.0)
    proxy.fault = lambda method, path: "503"
    with pytest.raises(OSError, match="it answered 503") as caught:
        Blobs(url, patience=0.5).get("a")
    assert SECRET not in str(caught.value) + caplog.text
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(OSError, match="no connection"):
        Blobs(url, patience=0.2).get("a")


def test_parts_that_the_store_has_are_not_sent_again(url, proxy):
    frozen = torch.randn(600_000, generator=torch.Generator().manual_seed(0))  # more than 1 MiB
    with Checkpoints(url, keep=None) as checkpoints:
        for step in (1, 2, 3):
            before = proxy.sent
            weights = {"model": {"backbone": frozen, "head": torch.full((9,), float(step))}}
            checkpoints.save(step, weights, wait=True)
            sent = proxy.sent - before
            assert sent > 2_400_000 if step == 1 else sent < 20_000
        # a part stays as long as one checkpoint refers to it
        storage = open_storage(url)
        storage.delete("step-00000001")
        assert not any(checkpoints.verify(path) for path in checkpoints.list())
        loaded = checkpoints.load(checkpoints.newest()).shared["model"]
    assert torch.equal(loaded["backbone"], frozen)


def test_a_large_tensor_is_stored_in_parts_and_read_by_ranges(url, monkeypatch):
    monkeypatch.setattr("stoker.storage.object_store.PART", 1000)
    storage = open_storage(url)
    data = os.urandom(4567)
    storage.below("a").write("file", [data[:123], data[123:]])
    storage.publish("a", "b")
    found = open_storage(url).below("b")
    assert len(found.contents()) == 6  # 123 bytes, and five parts of the rest
    assert found.size("file") == len(data)
    for start, length in ((0, 4567), (100, 50), (1100, 2500), (4567, 0)):
        assert bytes(found.read_range("file", start, length)) == data[start : start + length]
    with pytest.raises(ValueError, match="is shorter than"):
        found.read_range("file", 4000, 568)


def test_an_index_that_is_damaged_removes_nothing(url):
    with Checkpoints(url) as checkpoints:
        checkpoints.save(1, state(1), wait=True)
        checkpoints.save(2, state(2), wait=True)
        objects = [key for key in keys(url) if key.startswith("objects/")]
        Blobs(url).put(f"step-00000001/{INDEX}", b"{")
        assert [path.name for path in checkpoints.list()] == ["step-00000002"]
        checkpoints.save(3, state(3), wait=True)
    assert {*objects} <= {*keys(url)}


def test_a_store_that_ignores_conditions_is_refused(url, proxy, monkeypatch):
    proxy.unconditional = True
    try:
        with pytest.raises(CheckpointError, match="ignores the conditions of writes"):
            Checkpoints(url).open()
    finally:
        proxy.unconditional = False
    Checkpoints(url).open()
