"""Operators that make vectors of images."""

from typing import Any

import torch
from torch import Tensor, nn

from stoker.dialects.towhee.operator import NNOperator


class TimmOperator(NNOperator):
    """A model of timm, with its weights, as an operator."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, images: Tensor) -> Tensor:
        """What the model makes of a batch of images."""
        self.model.eval()
        with torch.no_grad():
            vectors: Tensor = self.model(images)
        return vectors


class Described:
    """An operator that is made when it is asked for."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def get_op(self) -> Any:
        """The operator itself."""
        return self._make()


def timm(model_name: str, num_classes: int = 1000, **options: Any) -> Described:
    """A model of timm by its name; options go to ``timm.create_model``."""

    def make() -> TimmOperator:
        try:
            from timm import create_model  # type: ignore[import-not-found]
        except (ImportError, RuntimeError) as error:  # RuntimeError: another torch's torchvision
            raise ImportError(
                f"ops.image_embedding.timm needs the package 'timm' ({error}): pip install timm"
            ) from error
        return TimmOperator(create_model(model_name, num_classes=num_classes, **options))

    return Described(make)
