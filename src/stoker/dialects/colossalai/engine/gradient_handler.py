"""Handlers that change gradients before they are clipped and used."""

from typing import Any


class BaseGradientHandler:
    """Override `handle_gradient`, which is called once before each update."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._model, self._optimizer = model, optimizer

    def handle_gradient(self) -> None:
        """Change the gradients of the model's parameters."""


class DataParallelGradientHandler(BaseGradientHandler):
    """Request synchronized gradients of replicas, which the layout provides."""


class PipelineSharedModuleGradientHandler(BaseGradientHandler):
    """Request shared gradients of tied weights in a pipeline, which the layout provides."""
