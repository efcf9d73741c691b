"""Operators by name: ``ops.image_embedding.timm(model_name="resnet18").get_op()``."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from stoker.dialects.towhee.operator import NNOperator


class TimmOperator(NNOperator):
    """A pretrained timm model as an operator."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = self._model = model

    def __call__(self, images: Tensor) -> Tensor:
        """Return the embeddings of a batch of images."""
        self.model.eval()
        with torch.no_grad():
            vectors: Tensor = self.model(images)
        return vectors


def timm(model_name: str, num_classes: int = 1000, **options: Any) -> Any:
    """Describe a timm model, which ``get_op()`` makes; options go to ``timm.create_model``."""

    def make() -> TimmOperator:
        try:
            from timm import create_model  # type: ignore[import-not-found]
        except (ImportError, RuntimeError) as error:  # RuntimeError: another torch's torchvision
            raise ImportError(
                f"ops.image_embedding.timm needs the package 'timm' ({error}): pip install timm"
            ) from error
        return TimmOperator(create_model(model_name, num_classes=num_classes, **options))

    return SimpleNamespace(get_op=make)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"there is no operator family {name!r} (there is image_embedding): any object with a "
        "model is trained by stoker.dialects.towhee.operator.train(op, training_config, …)"
    )
