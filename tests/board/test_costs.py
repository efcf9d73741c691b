"""Costs of a step are shown whatever they are grouped by."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.board.view import cost_groups


def test_groups_are_objects_of_seconds():
    tree = {
        "version": 1,
        "phases": {"forward": {"seconds": 0.2, "share": 0.5}, "data": 0.3},
        "note": "x",
    }
    assert cost_groups(tree) == {"phases": [("data", 0.3), ("forward", 0.2)]}


def test_rows_are_summed_up_for_each_hook_and_step():
    rows = [
        {"hook": "Loss", "part": "", "point": "after_step", "seconds": 0.5},
        {"hook": "Loss", "part": "", "point": "before_step", "seconds": 0.5},
        {"hook": "Write", "part": "JsonLines", "point": "after_step", "seconds": 9.0},
        {"hook": "Write", "part": "", "point": "after_step", "seconds": 0.2},
    ]
    assert cost_groups({"steps": 10, "rows": rows}) == {"hooks": [("Loss", 0.1), ("Write", 0.02)]}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("seconds"), inner),
)


@pytest.mark.slow
@given(values)
def test_anything_else_is_left_out(tree):
    for parts in cost_groups(tree).values():
        assert all(isinstance(seconds, float) for _, seconds in parts)
