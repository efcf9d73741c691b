"""Realistic work: a residual convnet on images of 32 × 32, augmented in two workers."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from work import Watch, Watched, Work, held_out

CLASSES, PAD = 10, 4


class Images(Dataset[Any]):
    """Noisy blobs of colour, a pattern per class; for training, shifted and mirrored at random."""

    def __init__(self, count: int, seed: int, augment: bool) -> None:
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.randn(CLASSES, 3, 4, 4, generator=torch.Generator().manual_seed(0))
        patterns = nn.functional.interpolate(coarse, (32, 32), mode="bilinear")
        self.labels = torch.randint(0, CLASSES, (count,), generator=generator)
        noise = 2 * torch.randn(count, 3, 32, 32, generator=generator)
        self.pixels = patterns[self.labels] + noise
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.pixels[index]
        if self.augment:
            top, left = torch.randint(0, 2 * PAD + 1, (2,)).tolist()
            image = nn.functional.pad(image, (PAD,) * 4)[:, top : top + 32, left : left + 32]
            if torch.rand(()) < 0.5:
                image = image.flip(2)
        return image, self.labels[index]


class Block(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        self.shortcut = nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def net() -> nn.Module:
    blocks = [Block(3, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


@cache
def data() -> tuple[Images, Images]:
    return Images(3200, 1, augment=True), Images(800, 2, augment=False)


def task(watch: Watch) -> Work:
    """Build 3 epochs of 50 steps."""
    train, test = data()
    torch.manual_seed(0)
    model = Watched(net(), watch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, foreach=True)
    loader = DataLoader(train, 64, shuffle=True, num_workers=2, persistent_workers=True)
    return Work(watch, model, optimizer, loader, held_out(test, 200), 3, 64, CLASSES, losses=True)
