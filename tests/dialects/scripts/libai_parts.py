"""The model and the data of a LiBai project: digits, and a model that returns its losses."""

import torch
from libai.utils.events import get_event_storage
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset


class Digits(Dataset):
    """Samples as the keyword arguments of the model."""

    def __init__(self, first, last):
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images[first:last] / 16, dtype=torch.float32)
        self.labels = torch.tensor(labels[first:last])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"images": self.images[index], "labels": self.labels[index]}


class Net(nn.Module):
    """Losses while it trains, with a number of its own in the storage; else scores."""

    def __init__(self, hidden):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, images, labels=None):
        scores = self.layers(images)
        if not self.training:
            return {"prediction_scores": scores}
        value = (scores.argmax(1) == labels).float().mean()
        storage = get_event_storage()
        storage.put_scalar("some_accuracy", value)
        return {"cls_loss": nn.functional.cross_entropy(scores, labels)}
