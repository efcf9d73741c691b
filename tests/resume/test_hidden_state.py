"""State of user code without a `state_dict`: what is restored, and that it stays shared."""

from collections import deque
from types import SimpleNamespace

from stoker.core.hidden_state import HiddenState


def test_containers_inside_containers_stay_shared_when_they_are_restored():
    inner, queue = [1], deque([[1]])
    first = queue[0]
    owner = SimpleNamespace(table={"inner": inner}, queue=queue)
    state = HiddenState(lambda: [("sampler", owner)])
    state.begin()
    inner.append(2)
    first.append(2)
    saved = state.capture()
    inner[:] = first[:] = [9, 9, 9]
    state.restore(saved)
    assert owner.table["inner"] is inner
    assert owner.queue[0] is first
    assert inner == first == [1, 2]
