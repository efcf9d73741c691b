"""Checkpoints need nothing but the protocol: here they are kept in memory."""

import pytest
import torch
import xxhash

from stoker.checkpoint import CheckpointError, Checkpoints
from stoker.storage import FileRecord
from support.checkpoint_states import number_in, own, state


class MemoryLease:
    def __init__(self, held):
        self.held = held
        held.append("leased")

    def check(self):
        pass

    def release(self):
        self.held.clear()


class MemoryStorage:
    """A `Storage` with the semantics of an object store: names with slashes, and no folders."""

    def __init__(self, files=None, prefix="memory/", held=None):
        self.files, self.prefix = {} if files is None else files, prefix
        self.held = [] if held is None else held

    def __str__(self):
        return self.prefix.rstrip("/")

    def below(self, name):
        return MemoryStorage(self.files, f"{self.prefix}{name}/", self.held)

    def create(self):
        pass

    def list(self):
        found = (name.removeprefix(self.prefix) for name in self.files if self._owns(name))
        return sorted({name.partition("/")[0] for name in found})

    def size(self, name):
        data = self.files.get(self.prefix + name)
        return None if data is None else len(data)

    def read(self, name):
        if self.size(name) is None:
            raise FileNotFoundError(name)
        return self.files[self.prefix + name]

    def read_range(self, name, start, length):
        return memoryview(bytearray(self.read(name)[start : start + length]))

    def checksum(self, name):
        return xxhash.xxh3_128(self.read(name)).hexdigest()

    def write(self, name, blocks):
        self.files[self.prefix + name] = b"".join(blocks)
        return FileRecord(self.size(name), self.checksum(name))

    def delete(self, name):
        for found in [n for n in self.files if n.startswith(f"{self.prefix}{name}/")]:
            del self.files[found]

    def publish(self, source, target, *, replaced=None):
        if target in self.list():
            if replaced is None:
                raise FileExistsError(target)
            self.publish(target, replaced)
        old = f"{self.prefix}{source}/"
        for name in [n for n in self.files if n.startswith(old)]:  # in the order of writing
            self.files[f"{self.prefix}{target}/{name.removeprefix(old)}"] = self.files.pop(name)

    def lease(self, on_lost=None):
        if self.held:
            raise CheckpointError(f"'{self}' is in use by another process")
        return MemoryLease(self.held)

    def free_bytes(self):
        return None

    def _owns(self, name):
        return name.startswith(self.prefix)


@pytest.fixture
def storage(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield MemoryStorage()
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_saved_replaced_pruned_and_loaded(storage):
    with Checkpoints(storage, keep=2) as checkpoints:
        for step in (1, 2, 3, 3):
            checkpoints.save(step, state(step), own(), {"epoch": step})
        checkpoints.wait()
        assert [path.name for path in checkpoints.list()] == ["step-00000002", "step-00000003"]
        found = checkpoints.load(checkpoints.newest())
    assert number_in(found) == 3
    assert torch.equal(found.own["torch"], own()["torch"])
    assert found.info == {"epoch": 3}
    assert storage.list() == ["step-00000002", "step-00000003"]


def test_a_damaged_file_is_named_and_the_one_before_is_used(storage):
    with Checkpoints(storage) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, state(step))
    storage.files["memory/step-00000002/state.json"] += b" "
    assert checkpoints.newest().name == "step-00000001"
    with pytest.raises(CheckpointError, match="'state.json' has"):
        checkpoints.load(checkpoints.list()[-1])


def test_what_a_killed_run_left_is_cleaned(storage):
    with Checkpoints(storage) as checkpoints:
        checkpoints.save(1, state(1))
    storage.publish("step-00000001", ".aside-step-00000001")
    storage.below(".step-00000002.partial-7").write("state.json", [b"{}"])
    with Checkpoints(storage) as checkpoints:
        assert number_in(checkpoints.load(checkpoints.newest())) == 1
    assert storage.list() == ["step-00000001"]


def test_two_runs_cannot_write_into_one_storage(storage):
    with Checkpoints(storage), pytest.raises(CheckpointError, match="in use by another process"):
        Checkpoints(storage).save(1, state(1))
