"""Orca's metrics: their values, over batches and processes, and metrics of one's own."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from stoker.dialects.orca.learn import metrics as orca
from stoker.dialects.orca.learn.pytorch import pytorch_metrics
from support.tasks import orca as tasks

P = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4], [0.5, 0.1, 0.4]])
Y = torch.tensor([0, 1, 0, 2])
ONE_HOT = functional.one_hot(Y, 3)
YES, TRUTH = torch.tensor([0.9, 0.4, 0.6, 0.2]), torch.tensor([1.0, 1.0, 0.0, 0.0])


def over(metric, preds, targets):
    """The value over two batches of one and three samples."""
    found = metric.get_metric("pytorch")
    found(preds[:1], targets[:1])
    found(preds[1:], targets[1:])
    return found.compute()


@pytest.mark.parametrize(
    ("metric", "preds", "targets", "expected"),
    [
        (orca.Accuracy(), P, Y, 0.5),
        (orca.Accuracy(), YES, TRUTH, 0.5),
        (orca.Accuracy(), YES[:, None], TRUTH, 0.5),
        (orca.Accuracy(), Y, torch.tensor([0, 1, 2, 2]), 0.75),
        (orca.Accuracy(), P.mT.reshape(1, 3, 4).repeat(4, 1, 1), Y.repeat(4, 1), 0.5),
        (orca.BinaryAccuracy(), YES, TRUTH, 0.5),
        (orca.SparseCategoricalAccuracy(), P, Y[:, None], 0.5),
        (orca.CategoricalAccuracy(), P, ONE_HOT, 0.5),
        (orca.Top5Accuracy(), torch.eye(6)[:4] + torch.arange(6.0) / 9, torch.arange(4), 1.0),
        (orca.MSE(), YES, TRUTH, float(functional.mse_loss(YES, TRUTH))),
        (orca.MAE(), YES, TRUTH, float(functional.l1_loss(YES, TRUTH))),
        (orca.BinaryCrossEntropy(), YES, TRUTH, float(functional.binary_cross_entropy(YES, TRUTH))),
        (orca.CategoricalCrossEntropy(), P, ONE_HOT, float(functional.nll_loss(P.log(), Y))),
        (orca.SparseCategoricalCrossEntropy(), P, Y, float(functional.nll_loss(P.log(), Y))),
        (
            orca.Poisson(),
            YES,
            TRUTH,
            float(functional.poisson_nll_loss(YES, TRUTH, log_input=False, eps=1e-7)),
        ),
        (orca.KLDivergence(), P, P, 0.0),
        (orca.Precision(), YES, TRUTH, 0.5),
        (orca.Recall(), YES, torch.tensor([1.0, 1.0, 1.0, 0.0]), 2 / 3),
        (orca.F1Score(), YES, torch.tensor([1.0, 1.0, 1.0, 0.0]), 0.8),
        (orca.F1Score(), P, Y, 0.5),
        (orca.Precision(), torch.tensor([2, 1, 0, 2]), Y, 0.75),
        (orca.AUC(), YES, TRUTH, 0.75),
    ],
)
def test_metrics_are_means_over_all_batches(metric, preds, targets, expected):
    assert float(over(metric, preds, targets)) == pytest.approx(expected, abs=1e-6)


def test_curves_are_three_tensors():
    for metric in (orca.ROC(), orca.PrecisionRecallCurve()):
        found = over(metric, YES, TRUTH)
        assert [type(one) for one in found] == [torch.Tensor] * 3
    rows = tasks.estimator(
        model=lambda config: nn.Sequential(nn.Linear(64, 1), nn.Sigmoid(), nn.Flatten(0)),
        loss=nn.BCELoss(),
        metrics=[orca.ROC(), orca.AUC()],
    ).evaluate({"x": tasks.X[:40], "y": (tasks.Y[:40] > 4).astype("float32")})
    rates, found, _ = rows["ROC"]
    assert rows["AUC"].item() == pytest.approx(float(torch.trapezoid(found, rates)))


@pytest.mark.parametrize(
    ("loss", "last"), [(nn.BCELoss(), nn.Sigmoid()), (nn.BCEWithLogitsLoss(), nn.Identity())]
)
def test_accuracy_knows_from_the_criterion_whether_outputs_are_probabilities(loss, last):
    def model(config):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 1), last)

    truth = (tasks.Y[:60] > 4).astype("float32")[:, None]
    metrics = [orca.Accuracy(), orca.BinaryAccuracy(), orca.Recall()]
    estimator = tasks.estimator(model=model, loss=loss, metrics=metrics)
    found = estimator.evaluate({"x": tasks.X[:60], "y": truth})
    with torch.no_grad():
        yes = torch.nn.functional.linear(torch.from_numpy(tasks.X[:60]), *model({})[0].parameters())
    hits = (yes > 0) == torch.from_numpy(truth > 0)
    assert found["Accuracy"].item() == found["BinaryAccuracy"].item() == float(hits.sum()) / 60
    assert found["Recall"].item() == pytest.approx(float((yes > 0)[truth > 0].double().mean()))


def test_a_prediction_needs_no_metric_that_fits():
    estimator = tasks.estimator(
        metrics=[orca.Top5Accuracy()], model=lambda config: nn.Linear(64, 2)
    )
    assert estimator.predict(tasks.X[:3]).shape == (3, 2)


def quartic(preds, targets):
    return (preds.argmax(1) - targets).abs().double().mean()


class Doubled(orca.Metric):
    """A metric of one's own, built on one that there is."""

    def get_pytorch_metric(self):
        class Twice(pytorch_metrics.Accuracy):
            def compute(self):
                return super().compute() * 2

        class Seen:
            def __init__(self):
                self.inner = Twice()

            def __call__(self, preds, targets):
                self.inner(preds, targets)

            def compute(self):
                return self.inner.compute()

        return Seen()

    def get_name(self):
        return "Doubled"


def test_functions_and_classes_of_users_are_metrics():
    estimator = tasks.estimator(
        model=tasks.seeded, metrics=[quartic, Doubled(), orca.Accuracy(), "accuracy"]
    )
    found = estimator.evaluate(tasks.val, batch_size=7)
    with torch.no_grad():
        guess = tasks.seeded({})(torch.from_numpy(tasks.X[:50])).argmax(1)
    expected = (guess - torch.from_numpy(tasks.Y[:50])).abs().double().mean()
    assert found["quartic"].item() == pytest.approx(float(expected))
    assert found["Doubled"] == 2 * found["Accuracy"]
    assert found["accuracy"] == found["Accuracy"]
    with pytest.raises(TypeError, match="the class Accuracy, expected an Orca metric or a func"):
        tasks.estimator(metrics=[orca.Accuracy]).evaluate(tasks.val)
    with pytest.raises(ValueError, match="counted from 0"):
        orca.Accuracy(zero_based_label=False)
    with pytest.raises(ValueError, match="is 'pytorch', got 'bigdl'"):
        orca.Accuracy().get_metric("bigdl")
    with pytest.raises(ValueError, match="expected the same shape"):
        over(orca.MSE(), torch.zeros(4, 2), torch.zeros(4, 3))
