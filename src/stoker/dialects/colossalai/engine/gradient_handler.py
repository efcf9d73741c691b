"""What is done to gradients before they are clipped and used."""

from typing import Any


class BaseGradientHandler:
    """Override `handle_gradient`, which is called once before each update."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._model, self._optimizer = model, optimizer

    def handle_gradient(self) -> None:
        """Change the gradients of the model's parameters."""


class DataParallelGradientHandler(BaseGradientHandler):
    """Asks for gradients that are shared between copies, which the engine's layout sees to."""


class PipelineSharedModuleGradientHandler(BaseGradientHandler):
    """Asks for the shared gradients of tied weights in a pipeline; the layout sees to them."""
