"""Stands in for the package timm, which needs a torchvision."""

from torch import nn


def create_model(model_name, num_classes=1000, **options):
    """A small model for images of any size, whatever the name."""
    assert model_name == "resnet18"
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, num_classes)
    )
