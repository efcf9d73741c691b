"""Operators by name: ``ops.image_embedding.timm(model_name="resnet18").get_op()``."""

from typing import Any

from stoker.dialects.towhee.ops import image_embedding

__all__ = ["image_embedding"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"there is no operator family {name!r} (there is image_embedding): any object with a "
        "model is trained by stoker.dialects.towhee.operator.train(op, training_config, …)"
    )
