"""The model of a config with the weights of a checkpoint, as ONNX."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stoker.build import Job
from stoker.checkpoint import CheckpointError
from stoker.cli.ckpt.weights_file import write_aside
from stoker.cli.train import made
from stoker.config.yaml_text import ConfigError
from stoker.core.tree import map_tensors
from stoker.engine import unwrap
from stoker.engine.batch import split_inputs

_LIMIT = 2**31
"""An ONNX file cannot be larger, as protobuf cannot."""


def check_packages() -> None:
    """Refuse at once where torch's exporter lacks what it builds on."""
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        raise ConfigError(
            f".onnx needs {names}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            f"pip install {' '.join(missing)}"
        )


@dataclass
class ModelOfConfig:
    """A model, and a batch of what goes into it."""

    model: nn.Module
    inputs: Any

    def export(self, weights: Mapping[str, Any], path: Path) -> None:
        """Put the weights into the model and write it."""
        try:
            self.model.load_state_dict(weights)
        except RuntimeError as error:
            said = " ".join(str(error).split())
            raise CheckpointError(f"the config's model does not take these weights: {said}") from (
                error
            )
        size = sum(value.nbytes for value in weights.values() if isinstance(value, Tensor))
        if size >= _LIMIT:
            raise ConfigError(f"an .onnx file holds less than 2 GB, these weights are {size:,} B")
        write_aside(path, self._write)

    def _write(self, path: Path) -> None:
        args, kwargs = _arguments(self.inputs)
        try:
            torch.onnx.export(
                self.model,
                args,
                path,
                kwargs=kwargs,
                dynamic_shapes=map_tensors(_free_first, kwargs or args),
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # torch's exporter raises whatever its parts raise
            said = " ".join(str(error).split())
            raise CheckpointError(
                f"torch cannot export this model to ONNX: {type(error).__name__}: {said[:300]}"
            ) from error


def built(options: argparse.Namespace) -> ModelOfConfig:
    """The model of a config in evaluation mode on the CPU, and a batch of its data."""
    job = made(options, training=False)
    inputs = map_tensors(lambda tensor: tensor.cpu(), _first_inputs(job, options))
    return ModelOfConfig(unwrap(job.trainer.engine.model).cpu().eval(), inputs)


def _first_inputs(job: Job, options: argparse.Namespace) -> Any:
    """The inputs of the first batch to predict, to validate on or, if need be, to train on."""
    loader = job.predict_loader if job.predict_loader is not None else job.val_loader
    if loader is None:
        loader = made(options).train_loader
    if isinstance(loader, Mapping):
        loader = next(iter(loader.values()))
    batch = next(iter(loader), None)
    if batch is None:
        raise ConfigError("the config's data has no batch to show what goes into the model")
    return split_inputs(batch)[0]


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs as a model is called with them: a tuple is several arguments, a dict is by name."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    return (inputs,), {}


def _free_first(tensor: Tensor) -> Any:
    return {0: torch.export.Dim.AUTO} if tensor.ndim else None
