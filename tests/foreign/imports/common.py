"""What the trainings of tests/foreign/imports share: the model, the data and the limits."""

import json

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH, EPOCHS, KEPT = 100, 4, 2
"""Samples of a batch, epochs of a training, and the epoch whose checkpoint is imported."""

EPSILON = 1e-12
"""That of AdamW in the comparison with Keras."""


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def pixels():
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x[:1500] / 16, dtype=torch.float32), torch.tensor(y[:1500])


def loader():
    return DataLoader(TensorDataset(*pixels()), BATCH)


def make_optimizer(kind, model):
    if kind == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def finish(model, checkpoint):
    """Print the checkpoint to import, and the weights at the end of the training."""
    weights = {name: one.double().tolist() for name, one in model.state_dict().items()}
    print("RESULT " + json.dumps([str(checkpoint), weights]))
