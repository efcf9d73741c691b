"""State of user code without a `state_dict`: what is restored, and that it stays shared."""

import weakref
from collections import deque
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from stoker.core.batch_list import BatchListState, leaves_of
from stoker.core.user_state import UserState


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
