import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker import metrics
from stoker.metrics import Accuracy, Mean, Metric


@given(
    st.lists(
        st.tuples(st.floats(-1e3, 1e3, width=32), st.integers(1, 64)), min_size=1, max_size=600
    ),
    st.booleans(),
)
def test_a_mean_is_over_samples_however_they_are_batched(pairs, as_tensors):
    mean = Mean()
    for value, weight in pairs:
        mean.update(torch.tensor(value) if as_tensors else value, weight)
    expected = sum(v * w for v, w in pairs) / sum(w for _, w in pairs)
    assert mean.compute() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert mean.compute() == mean.compute()


def test_a_mean_of_nothing_is_nan():
    assert Mean().compute() != Mean().compute()
    assert Mean().empty


@pytest.mark.slow
@given(st.integers(0, 700), st.integers(0, 700), st.booleans())
def test_a_mean_resumed_in_the_middle_continues_to_the_same_bits(before, after, as_tensors):
    drawn = torch.rand(before + after, generator=torch.Generator().manual_seed(before))
    values = list(drawn) if as_tensors else drawn.tolist()
    whole, first, second = Mean(), Mean(), Mean()
    for value in values:
        whole.update(value, 3)
    for value in values[:before]:
        first.update(value, 3)
    second.load_state_dict(first.state_dict())
    for value in values[before:]:
        second.update(value, 3)
    assert second.state_dict() == whole.state_dict()


@pytest.mark.slow
@pytest.mark.row("L22")
@pytest.mark.parametrize("topk", [1, 2, 5])
def test_topk_accuracy_equals_exact_counts(topk):
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(10_000, 10, generator=generator)
    targets = torch.randint(0, 10, (10_000,), generator=generator)
    metric = Accuracy(topk)
    for some_outputs, some_targets in zip(outputs.split(37), targets.split(37), strict=True):
        metric.update(some_outputs, some_targets)
    order = outputs.argsort(1, descending=True)[:, :topk]
    hits = sum(int(t) in row for t, row in zip(targets, order.tolist(), strict=True))
    assert metric.compute() == hits / 10_000


@pytest.mark.parametrize(
    ("outputs", "targets", "expected"),
    [
        ([[0.1, 0.9], [0.8, 0.2]], [1, 1], 0.5),
        ([2.0, -1.0, 3.0], [1, 0, 0], 2 / 3),
        ([[2.0], [-1.0]], [1, 0], 1.0),
        ([[2.0], [-1.0]], [[1.0], [1.0]], 0.5),
        ([[0.1, 0.9], [0.8, 0.2]], [[0.0, 1.0], [0.0, 1.0]], 0.5),
        ([[[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]], [[0, 1, 1]], 1.0),
        ([[[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]], [[1, 0, 0]], 2 / 3),
    ],
    ids=[
        "classes",
        "yes or no",
        "one column",
        "one column both",
        "probabilities",
        "as cross entropy",
        "classes last",
    ],
)
def test_accuracy_reads_the_shapes_people_use(outputs, targets, expected):
    metric = Accuracy()
    metric.update(torch.tensor(outputs), torch.tensor(targets))
    assert metric.compute() == pytest.approx(expected)


def test_targets_that_are_ignored_do_not_count():
    metric = Accuracy(ignore_index=-100)
    metric.update(torch.eye(4), torch.tensor([0, -100, 0, -100]))
    assert metric.compute() == 0.5


def test_accuracy_refuses_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"outputs of shape \[4, 3\] and targets of shape \[5\]"):
        Accuracy().update(torch.zeros(4, 3), torch.zeros(5))
    with pytest.raises(ValueError, match="topk must be at least 1, got 0"):
        Accuracy(0)


@pytest.mark.row("T17")
def test_any_torchmetrics_class_is_found_by_name():
    import torchmetrics

    f1 = metrics.get("MulticlassF1Score", num_classes=3)
    assert isinstance(f1, torchmetrics.Metric)
    assert isinstance(f1, Metric)
    assert isinstance(metrics.get("accuracy", topk=5), Accuracy)
    assert len(metrics.available()) > 80


@pytest.mark.row("T17")
def test_an_unknown_name_lists_close_matches():
    with pytest.raises(
        ValueError, match="there is no metric named 'MulticlasF1Score'; did you mean 'Multi"
    ):
        metrics.get("MulticlasF1Score")


@pytest.mark.row("T17")
def test_without_the_library_the_own_metrics_are_left(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    assert metrics.available() == ["accuracy"]
    assert isinstance(metrics.get("accuracy"), Accuracy)
    with pytest.raises(ImportError, match="torchmetrics cannot be imported"):
        metrics.get("MulticlassF1Score")


def test_shapes_that_leave_the_classes_open_are_refused_unless_they_are_given():
    outputs, targets = torch.eye(3).expand(2, 3, 3), torch.arange(3).expand(2, 3)
    with pytest.raises(
        ValueError, match=r"use Accuracy\(class_dim=1\) or Accuracy\(class_dim=-1\)"
    ):
        Accuracy().update(outputs, targets)
    metric = Accuracy(class_dim=-1)
    metric.update(outputs, targets)
    assert metric.compute() == 1.0


def test_several_labels_a_sample_are_refused_with_the_way_out():
    targets = torch.tensor([[1, 1, 0], [0, 1, 1]])
    with pytest.raises(ValueError, match="MultilabelAccuracy"):
        Accuracy().update(torch.randn(2, 3), targets)
