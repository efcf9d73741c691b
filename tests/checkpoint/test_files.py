"""The files of a checkpoint: other programs can read them, and every fault is detected."""

import json
import pickle
import random
import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from stoker.checkpoint import CheckpointError, Checkpoints
from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.names import MANIFEST
from stoker.checkpoint.format.tensor_file import DTYPES, TensorEntry, TensorFile
from support.checkpoint_states import own, save, state


@pytest.fixture
def folder(tmp_path):
    save(tmp_path, 1)
    return tmp_path / "step-00000001"


def test_the_files_of_one_process(folder):
    assert sorted(path.name for path in folder.iterdir()) == [
        "MANIFEST.json",
        "model.safetensors",
        "rank-00000.json",
        "rank-00000.safetensors",
        "state.json",
        "state.safetensors",
    ]


def test_what_was_saved_is_loaded(tmp_path):
    kept = {"model": nn.Linear(2, 2).state_dict(), "seen": [1, (2, None)], "tied": torch.ones(2)}
    with Checkpoints(tmp_path) as checkpoints:
        path = checkpoints.save(7, kept, own(), {"epoch": 2, "loss": float("nan")}, wait=True)
        found = checkpoints.load(path)
    assert (found.step, found.world_size, found.info["epoch"]) == (7, 1, 2)
    assert torch.equal(found.own["torch"], own()["torch"])
    assert found.shared["seen"] == [1, (2, None)]
    nn.Linear(2, 2).load_state_dict(found.shared["model"])


def test_the_weights_can_be_loaded_by_others(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[1].weight = model[0].weight
    with Checkpoints(tmp_path) as checkpoints:
        path = checkpoints.save(1, {"model": model.state_dict()}, wait=True)
    other = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    other.load_state_dict(load_file(path / "model.safetensors"))
    assert torch.equal(other[1].weight, model[0].weight)


def test_every_dtype_is_written_as_safetensors_has_it(tmp_path):
    model = {str(d): torch.randint(0, 2, (3,)).to(d) for d in DTYPES}
    model |= {"none": torch.empty(0, 2), "one": torch.tensor(1.5), "ü": torch.ones(1)}
    with Checkpoints(tmp_path) as checkpoints:
        path = checkpoints.save(1, {"model": model}, wait=True)
        ours = checkpoints.load(path).shared["model"]
    theirs = load_file(path / "model.safetensors")
    for name, tensor in model.items():
        for found in (theirs[name], ours[name]):
            assert found.dtype == tensor.dtype
            assert torch.equal(found.view(torch.uint8) if found.ndim else found,
                               tensor.view(torch.uint8) if tensor.ndim else tensor)  # fmt: skip


def test_wide_tensors_come_first_so_that_all_are_aligned():
    dtypes = [torch.bool, torch.float64, torch.int16]
    file = TensorFile(TensorEntry(str(dtype), dtype, (3,)) for dtype in dtypes)
    assert list(file.offsets.values()) == [0, 24, 30]
    assert len(file.header()) % 8 == 0


def test_a_checkpoint_may_have_no_tensors(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        path = checkpoints.save(1, {"only": "text"}, wait=True)
        assert checkpoints.load(path).shared == {"only": "text"}
        assert checkpoints.load(path).own is None


@pytest.mark.slow
def test_a_change_of_any_byte_is_detected(folder):
    files, chance = sorted(folder.iterdir()), random.Random(0)
    checkpoints = Checkpoints(folder.parent)
    for turn in range(204):
        path = files[turn % len(files)]
        content = path.read_bytes()
        at, flip = chance.randrange(len(content)), chance.randrange(1, 256)
        path.write_bytes(content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :])
        faults = checkpoints.verify(folder)
        assert len(faults) == 1, f"{path.name} at {at}"
        assert path.name in faults[0] or "format" in faults[0]
        path.write_bytes(content)
    assert checkpoints.verify(folder) == []


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "rank-00000.json"])
def test_a_short_or_missing_file_is_named(folder, name):
    path, checkpoints = folder / name, Checkpoints(folder.parent)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    assert checkpoints.verify(folder) == [f"'{name}' has {size - 1} bytes, expected {size}"]
    path.unlink()
    assert checkpoints.verify(folder) == [f"'{name}' is missing"]


def test_a_manifest_that_was_edited_or_truncated_is_rejected(folder):
    path, checkpoints = folder / MANIFEST, Checkpoints(folder.parent)
    text = path.read_text()
    path.write_text(text.replace('"step": 1', '"step":  1'))
    assert checkpoints.verify(folder) == [
        f"MANIFEST.json in '{folder}' was changed after it was written"
    ]
    path.write_text(text[:100])
    assert "MANIFEST.json in" in checkpoints.verify(folder)[0]
    path.write_text("[]")
    assert "cannot be read" in checkpoints.verify(folder)[0]


def test_the_newest_complete_one_is_used_and_skipped_ones_are_logged(tmp_path, caplog):
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, state(step))
    (tmp_path / "step-00000003" / "state.json").unlink()
    assert checkpoints.newest() == tmp_path / "step-00000002"
    assert "step-00000003': 'state.json' is missing" in caplog.text
    with pytest.raises(CheckpointError, match="is damaged: 'state.json' is missing"):
        checkpoints.load(tmp_path / "step-00000003")


def test_another_format_is_rejected(folder, caplog):
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 9}))
    with pytest.raises(
        CheckpointError, match="has checkpoint format 9, this Stoker reads format 1"
    ):
        Checkpoints(folder.parent).load(folder, verify=False)
    assert Checkpoints(folder.parent).newest() is None
    assert "format 9" in caplog.text


def test_unlisted_files_are_neither_faults_nor_opened(folder):
    class Bomb:
        def __reduce__(self):
            return (pytest.exit, ("it was unpickled",))

    for name in ("data.pkl", "rank-00001.json", "model-2.safetensors", ".metadata", "a.pt"):
        (folder / name).write_bytes(pickle.dumps(Bomb()))
    checkpoints = Checkpoints(folder.parent)
    assert checkpoints.verify(folder) == []
    assert checkpoints.newest() == folder
    assert checkpoints.load(folder).step == 1


def test_a_pickle_in_place_of_a_file_is_not_opened(folder):
    (folder / "state.json").write_bytes(pickle.dumps({}))
    assert "state.json" in Checkpoints(folder.parent).verify(folder)[0]


def test_a_folder_without_a_manifest_is_not_a_checkpoint(folder):
    (folder / MANIFEST).unlink()
    checkpoints = Checkpoints(folder.parent)
    assert (checkpoints.list(), checkpoints.newest()) == ([], None)
    with pytest.raises(CheckpointError, match="is not a checkpoint: it has no MANIFEST.json"):
        checkpoints.load(folder)


def test_a_folder_can_be_copied_elsewhere(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "other" / "step-00000001")
    assert Checkpoints(tmp_path / "other").newest().parent.name == "other"


def test_an_empty_or_absent_folder_has_no_newest(tmp_path):
    assert Checkpoints(tmp_path / "none").newest() is None
    assert not (tmp_path / "none").exists()


def test_info_rejects_tensors(tmp_path):
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(TypeError, match="info → loss is a"):
        checkpoints.save(1, {}, info={"loss": torch.ones(1)})


def test_the_manifest_has_step_files_and_world_size(folder):
    manifest = Manifest.read(folder)
    assert (manifest.step, manifest.world_size, manifest.split) == (1, 1, {})
    assert manifest.files["model.safetensors"].size == (folder / "model.safetensors").stat().st_size
