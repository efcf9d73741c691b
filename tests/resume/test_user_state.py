"""State of user code without a `state_dict`: what is restored, and that it stays shared."""

import json
import weakref
from collections import deque, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stoker import Engine, Trainer, hooks
from stoker.checkpoint.format.state_tree import flatten, unflatten
from stoker.core.batch_list import BatchListState, leaves_of
from stoker.core.errors import CheckpointError
from stoker.core.user_state import UserState
from stoker.resume.run_state import RunState


def test_containers_inside_containers_stay_shared_when_they_are_restored():
    inner, queue = [1], deque([[1]])
    first = queue[0]
    owner = SimpleNamespace(table={"inner": inner}, queue=queue)
    state = UserState(lambda: [("sampler", owner)])
    state.begin()
    inner.append(2)
    first.append(2)
    saved = state.capture()
    inner[:] = first[:] = [9, 9, 9]
    state.restore(saved)
    assert owner.table["inner"] is inner
    assert owner.queue[0] is first
    assert inner == first == [1, 2]


Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (0j, complex(1.5, -2.0)),
        (None, torch.Size([2, 3])),
        ({}, {(1, "a"): [1.0, 2.0], "b": {3: (4,)}}),
        ({1}, {(1, 2), (3, frozenset({4}))}),
        (deque([0], 3), deque([1, 2, 3], 3)),
        (Pair(0, 0), Pair(1, [2])),
        ([], list(range(1000))),
        ({}, {number: number / 7 for number in range(100)}),
        ([np.zeros(2)], [np.array([1, 2], np.int8), np.float32(0.1)]),
        (torch.zeros(2), torch.ones(2)),
        (torch.zeros(2), torch.ones(3)),
    ],
    ids=str,
)
def test_a_value_of_any_kind_comes_back_from_a_checkpoint(before, after):
    owner = SimpleNamespace(value=before)
    state = UserState(lambda: [("sampler", owner)])
    state.begin()
    owner.value = after
    tensors, values = flatten(state.capture())
    shown = repr(after)
    resumed = SimpleNamespace(value=before)
    state = UserState(lambda: [("sampler", resumed)])
    state.begin()
    state.restore(unflatten(tensors, json.loads(json.dumps(values))))
    assert repr(resumed.value) == shown
    assert type(resumed.value) is type(after)


def test_a_checkpoint_without_state_of_user_code_is_refused(tmp_path, monkeypatch):
    own = RunState.own

    def without(self, feeder):
        return {name: one for name, one in own(self, feeder).items() if name != "user_state"}

    def fit(epochs):
        torch.manual_seed(0)
        model = nn.Linear(1, 1)
        engine = Engine(model, torch.optim.SGD(model.parameters(), 0.1), nn.MSELoss())
        trainer = Trainer(engine, [hooks.Checkpoint("1ep")], run_dir=tmp_path / "run", seed=0)
        trainer.fit([(torch.ones(2, 1), torch.ones(2, 1))], epochs=epochs)

    monkeypatch.setattr(RunState, "own", without)
    fit(1)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="it has no state of user code"):
        fit(2)


def batches(count: int = 100) -> list[tuple[Tensor, int]]:
    return [(torch.full((2,), float(number)), number) for number in range(count)]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[7][0].add_(1),
        lambda data: data.__setitem__(7, (data[7][0].clone(), 7)),
        lambda data: data.__setitem__(7, (data[7][0], 8)),
        lambda data: data.append(data[0]),
        lambda data: data.reverse(),
    ],
)
def test_a_change_in_a_long_list_of_batches_is_saved_and_restored(change):
    owner = SimpleNamespace(data=batches())
    state = UserState(lambda: [("dataset", owner)])
    state.begin()
    assert state.capture() == []
    change(owner.data)
    expected = [(x.clone(), y) for x, y in owner.data]
    saved = state.capture()
    owner.data[:] = batches()
    state.restore(saved)
    assert [y for _, y in owner.data] == [y for _, y in expected]
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(owner.data, expected, strict=True))


def test_a_long_list_that_changed_after_the_save_is_reported(caplog):
    owner = SimpleNamespace(data=batches())
    state = UserState(lambda: [("dataset", owner)])
    state.begin()
    saved = state.capture()
    owner.data[3][0].zero_()
    with caplog.at_level("WARNING", logger="stoker"):
        state.restore(saved)
    assert "dataset.data (list) changes during training and cannot be saved" in caplog.text


def test_the_state_of_a_list_of_batches_keeps_no_tensor_alive():
    data = [torch.zeros(2) for _ in range(100)]
    state = BatchListState(data, leaves_of(data))
    alive = weakref.ref(data[0])
    data[0] = torch.zeros(2)
    assert alive() is None
    assert state != BatchListState(data, leaves_of(data))


def test_lists_of_batches_in_two_processes_have_the_same_digest_if_their_content_is_the_same():
    first, second = (UserState(lambda: [("dataset", batches())]) for _ in range(2))
    assert first.digests() == second.digests()
