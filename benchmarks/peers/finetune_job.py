"""Realistic work: the last layer of a convnet is trained, all others are frozen."""

import torch
from images_job import CLASSES, data, net
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from work import Watch, Watched, Work, held_out


class FineTuned(nn.Module):
    """A frozen backbone, which keeps its statistics, and a head that is trained."""

    def __init__(self) -> None:
        super().__init__()
        layers = list(net().children())
        self.backbone = nn.Sequential(*layers[:-1]).requires_grad_(False)
        self.head = nn.Linear(64, CLASSES)

    def train(self, mode: bool = True) -> "FineTuned":
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))  # type: ignore[no-any-return]


def task(watch: Watch) -> Work:
    """Build 3 epochs of 50 steps."""
    train, test = (TensorDataset(part.pixels, part.labels) for part in data())
    torch.manual_seed(0)
    model = Watched(FineTuned(), watch)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, fused=True)
    loader = DataLoader(train, 64, shuffle=True)
    return Work(watch, model, optimizer, loader, held_out(test, 200), 3, 64, CLASSES, losses=True)
