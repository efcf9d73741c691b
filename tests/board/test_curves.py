"""Few points are drawn, and no peak is lost."""

import json
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stoker.rundir.metrics_index import Columns, Curves, bucket_means, fractional_epochs, thin

floats = st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.slow
@given(st.lists(floats, max_size=400), st.integers(2, 60))
@example([*[0.0] * 13, -1.0, -math.inf], 12)  # after the last full bucket
def test_the_smallest_and_the_largest_value_are_always_drawn(values, points):
    values = np.array(values, np.float64)
    picked = thin(values, points)
    assert len(picked) <= max(points, 6)
    assert np.all(np.diff(picked) > 0)
    finite = values[np.isfinite(values)]
    if len(finite):
        assert np.nanmin(values[picked][np.isfinite(values[picked])]) == finite.min()
        assert np.nanmax(values[picked][np.isfinite(values[picked])]) == finite.max()
    if len(values):
        assert picked[0] == 0
        assert picked[-1] == len(values) - 1


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(1, 40))
def test_the_mean_of_means_is_the_mean(values, points):
    rows, found = bucket_means(np.arange(len(values), dtype=np.int32), np.array(values), points)
    assert len(rows) == len(found)
    assert min(values) - 1e-6 <= found.min() <= found.max() <= max(values) + 1e-6


def columns(count, **heads):
    made = Columns()
    lines = []
    for i in range(count):
        head = {"step": i, "epoch": i // 100, "samples": 8 * i, "time": 1e9 + i / 2}
        lines.append(json.dumps(head | {k: v(i) for k, v in heads.items()} | {"y": i % 7}).encode())
    made.extend(lines)
    return made


def test_a_window_reaches_one_point_beyond_its_edges():
    found = Curves(columns(1000)).window("y", "step", 100, 200, 210)
    assert found["x"].tolist() == list(range(199, 212))


def test_each_axis_has_its_own_numbers():
    curves = Curves(columns(300))
    ends = {axis: float(curves.window("y", axis, 9999)["x"][-1]) for axis in
            ("step", "samples", "time", "epoch")}  # fmt: skip
    assert ends == {"step": 299, "samples": 8 * 299, "time": 149.5, "epoch": 2.99}


def test_steps_that_go_back_are_drawn_in_order():
    curves = Curves(columns(100, step=lambda i: i if i < 50 else i - 30))
    x = curves.window("y", "step", 1000, 10, 60)["x"]
    assert np.all(np.diff(x) >= 0)


def test_epochs_have_fractions_once_one_has_ended():
    step = np.array([5.0, 10.0, 15.0, 20.0, 25.0])
    assert fractional_epochs(step, np.array([0, 1, 1, 2, 2.0])).tolist() == [0.5, 1, 1.5, 2, 2.5]
    assert fractional_epochs(step, np.zeros(5)).tolist() == [0] * 5


def test_a_name_nobody_put_has_no_points():
    assert Curves(columns(3)).window("nothing", "step", 10)["count"] == 0
