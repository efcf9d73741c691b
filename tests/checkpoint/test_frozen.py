"""Tensors that do not change are written once; each checkpoint is still complete in itself."""

import errno
import os
import shutil

import pytest
import torch
from torch import nn

from stoker import Engine, Layout, Trainer, hooks
from stoker.checkpoint import Checkpoints
from stoker.cli import main
from stoker.core import dist
from stoker.storage import LocalStorage, crash_points
from support.checkpoint_states import KILLED, in_child
from support.pool import pool

FROZEN = "model-frozen.safetensors"


def state(number):
    """A backbone of 1.2 MB that stays, with tensors between its own that change with the number."""
    backbone = {f"block.{n}.weight": torch.full((100_000,), float(n)) for n in range(3)}
    adapter = {f"block.{n}.lora": torch.full((10,), float(number)) for n in range(3)}
    empty = {"empty": torch.zeros(0, 3), "mask": torch.ones(5, dtype=torch.bool)}
    return {"model": {**backbone, **adapter, **empty}, "step": torch.tensor(number)}


def save(folder, *steps, make=state, **options):
    with Checkpoints(folder, **{"keep": None, **options}) as checkpoints:
        for step in steps:
            checkpoints.save(step, make(step), wait=True)
    return checkpoints


def inode(folder, step, name=FROZEN):
    return (folder / f"step-{step:08}" / name).stat().st_ino


def check(checkpoints, step, make=state):
    loaded = checkpoints.load(checkpoints.folder / f"step-{step:08}").shared
    for name, expected in make(step)["model"].items():
        assert loaded["model"][name].equal(expected), name
    assert loaded["step"] == step


def test_what_does_not_change_is_linked_and_what_changes_is_written(tmp_path):
    checkpoints = save(tmp_path, 0, 1, 2, 3)
    assert not (tmp_path / "step-00000000" / FROZEN).exists()  # nothing to compare it with
    assert inode(tmp_path, 1) == inode(tmp_path, 2) == inode(tmp_path, 3)
    for step in range(4):
        check(checkpoints, step)
    size = sum(file.stat().st_size for file in (tmp_path / "step-00000003").iterdir())
    new = size - (tmp_path / "step-00000003" / FROZEN).stat().st_size
    assert new < 0.005 * size


def test_a_new_process_links_to_the_newest_checkpoint(tmp_path):
    save(tmp_path, 0, 1)
    checkpoints = save(tmp_path, 2)
    assert inode(tmp_path, 1) == inode(tmp_path, 2)
    check(checkpoints, 2)


def test_checkpoints_can_be_removed_copied_and_linked_from_another_run(tmp_path):
    base, fork = tmp_path / "base", tmp_path / "fork"
    save(base, 0, 1, 2, keep=1)
    assert [path.name for path in base.iterdir()].count("step-00000002") == 1
    shutil.copytree(base / "step-00000002", tmp_path / "copy" / "step-00000002")
    with Checkpoints(fork) as checkpoints:
        checkpoints.load(base / "step-00000002")
        checkpoints.save(3, state(3), wait=True)
    assert inode(fork, 3) == inode(base, 2)
    shutil.rmtree(base)
    check(checkpoints, 3)
    check(Checkpoints(tmp_path / "copy"), 2)


def test_a_tensor_that_begins_to_change_is_written_again_and_the_others_stay(tmp_path):
    def make(number):
        found = state(number)
        found["model"]["block.0.weight"] += max(number, 2)  # from step 3 on
        found["model"] |= {f"more.{n}": torch.ones(300_000) for n in range(2)}
        return found

    checkpoints = save(tmp_path, *range(6), make=make)
    assert inode(tmp_path, 1) == inode(tmp_path, 2)
    assert len({inode(tmp_path, step) for step in (2, 3)}) == 2
    assert inode(tmp_path, 3) == inode(tmp_path, 4) == inode(tmp_path, 5)
    for step in range(6):
        check(checkpoints, step, make)


def test_a_step_that_is_saved_again_is_no_reason_to_move_tensors(tmp_path):
    save(tmp_path, 1, 1)
    assert not list(tmp_path.rglob(FROZEN))


def test_a_model_that_is_frozen_altogether_is_written_once(tmp_path):
    make = lambda step: {**state(0), "step": torch.tensor(step)}
    checkpoints = save(tmp_path, 0, 1, 2, make=make)
    assert inode(tmp_path, 1) == inode(tmp_path, 2)
    check(checkpoints, 2, make)


def test_small_tensors_share_the_file(tmp_path):
    save(tmp_path, *range(3), make=lambda step: {"model": {"a": torch.ones(9)}, "n": step})
    assert not list(tmp_path.rglob("*-frozen*"))


@pytest.mark.parametrize("error", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_a_disk_without_links_gets_a_copy(tmp_path, monkeypatch, error):
    link = os.link

    def fail(source, target, **kwargs):
        if str(target).endswith(".safetensors"):
            raise OSError(error, os.strerror(error))
        link(source, target, **kwargs)

    monkeypatch.setattr(os, "link", fail)
    checkpoints = save(tmp_path, 0, 1, 2)
    assert inode(tmp_path, 1) != inode(tmp_path, 2)
    check(checkpoints, 2)


def test_a_damaged_file_is_not_linked_but_written_again(tmp_path):
    checkpoints = save(tmp_path, 0, 1)
    with (tmp_path / "step-00000001" / FROZEN).open("r+b") as file:
        file.seek(500_000)
        file.write(b"damage")
    checkpoints = save(tmp_path, 2)
    assert checkpoints.verify(tmp_path / "step-00000001")
    check(checkpoints, 2)


def third(folder):
    save(folder, 3, keep=2)


@pytest.mark.process
def test_a_kill_at_any_point_leaves_complete_checkpoints_and_nothing_else(tmp_path, monkeypatch):
    seen = []
    save(tmp_path / "before", 0, 1, 2, keep=2)
    shutil.copytree(tmp_path / "before", tmp_path / "all")
    monkeypatch.setattr(crash_points, "at", seen.append)
    third(tmp_path / "all")
    monkeypatch.undo()
    assert "file-linked" in seen
    for number, point in enumerate(seen):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "before", folder)
        turn = seen[: number + 1].count(point)
        assert in_child(third, folder, STOKER_KILL_AT=f"{point}:{turn}") == KILLED, point
        checkpoints = save(folder, 4, keep=2)
        assert len(checkpoints.list()) == 2
        for path in checkpoints.list():
            check(checkpoints, int(path.name[-1]))
        assert {path.name for path in folder.iterdir()} == {
            ".lock", *(path.name for path in checkpoints.list())
        }, point  # fmt: skip
        links = (folder / "step-00000004" / FROZEN).stat().st_nlink
        assert links == 2, point  # of both checkpoints: nothing else holds the bytes
        shutil.rmtree(folder)


def test_ls_shows_what_is_stored_for_each(tmp_path, capsys):
    save(tmp_path, 0, 1, 2)
    assert main(["ckpt", "ls", str(tmp_path), "--quick"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["step", "epoch", "size", "stored", "age"]
    assert [row.split()[5] for row in rows] == ["MB", "MB", "kB"]


class Backbone(nn.Module):
    """A frozen layer of 1 MB per rank of two, and a head."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(512, 1024)
        self.head = nn.Linear(1024, 1)
        self.backbone.requires_grad_(False)

    def forward(self, inputs):
        return self.head(self.backbone(inputs).relu())


def train(folder, layout, epochs):
    torch.manual_seed(0)
    model = Backbone()
    optimizer = torch.optim.Adam(model.head.parameters(), 1e-3)
    engine = Engine(model, optimizer, nn.MSELoss(), layout=layout)
    trainer = Trainer(engine, [hooks.Checkpoint("1st", keep=None)], run_dir=folder, seed=1)
    generator = torch.Generator().manual_seed(dist.rank())
    data = [torch.randn(2, 513, generator=generator) for _ in range(2)]
    trainer.fit([(one[:, :512], one[:, 512:]) for one in data], epochs=epochs)
    return [one.tolist() for one in engine.weights().values()]


@pytest.mark.process
def test_shards_are_linked_by_each_rank_and_load_in_another_layout(tmp_path):
    folder = tmp_path / "run"
    pool().run(2, train, str(folder), Layout(shard=2), 1)
    resumed = pool().run(2, train, str(folder), Layout(shard=2), 2)[0]
    straight = pool().run(2, train, str(tmp_path / "straight"), Layout(shard=2), 2)[0]
    assert resumed == straight
    names = [f"model-frozen-0000{rank}-of-00002.safetensors" for rank in range(2)]
    for name in names:
        assert inode(folder / "checkpoints", 2, name) == inode(folder / "checkpoints", 4, name)
    assert not any(map(Checkpoints(folder).verify, (folder / "checkpoints").glob("step-*")))
    alone = Checkpoints(folder / "checkpoints").load(folder / "checkpoints" / "step-00000004")
    assert [one.tolist() for one in alone.shared["model"].values()] == straight


def test_a_link_into_the_checkpoint_before_is_not_followed(tmp_path):
    save(tmp_path, 0, 1)
    (tmp_path / "elsewhere").mkdir()
    before = LocalStorage(tmp_path).below("step-00000001")
    os.rename(before.folder / FROZEN, tmp_path / "elsewhere" / FROZEN)
    os.symlink(tmp_path / "elsewhere" / FROZEN, before.folder / FROZEN)
    checkpoints = save(tmp_path, 2)
    assert not (tmp_path / "step-00000002" / FROZEN).is_symlink()
    check(checkpoints, 2)
