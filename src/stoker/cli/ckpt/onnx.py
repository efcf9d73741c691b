"""Export the model of a config with the weights of a checkpoint to ONNX."""

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
from stoker.cli.ckpt.weights_file import write_atomically
from stoker.cli.jobs import job_from
from stoker.core.errors import ConfigError
from stoker.core.tree import map_tensors
from stoker.engine import unwrap
from stoker.engine.batch import split_inputs

_LIMIT = 2**31
"""The size limit of protobuf, and so of an ONNX file."""


def check_packages() -> None:
    """Raise `ConfigError` if packages that torch's exporter needs are missing."""
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        raise ConfigError(
            f".onnx needs {names}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            f"pip install {' '.join(missing)}"
        )


@dataclass
class OnnxModel:
    """A model and the inputs of one batch."""

    model: nn.Module
    inputs: Any

    def export(self, weights: Mapping[str, Any], path: Path) -> None:
        """Load the weights into the model and write it."""
        try:
            self.model.load_state_dict(weights)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(f"the weights do not fit the config's model: {reason}") from error
        size = sum(value.nbytes for value in weights.values() if isinstance(value, Tensor))
        if size >= _LIMIT:
            raise ConfigError(f"an .onnx file must be below 2 GB, the weights have {size:,} bytes")
        write_atomically(path, self._write)

    def _write(self, path: Path) -> None:
        args, kwargs = _arguments(self.inputs)
        try:
            torch.onnx.export(
                self.model,
                args,
                path,
                kwargs=kwargs,
                dynamic_shapes=map_tensors(_dynamic_first, kwargs or args),
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # torch's exporter can raise anything
            reason = " ".join(str(error).split())
            raise CheckpointError(
                f"torch cannot export this model to ONNX: {type(error).__name__}: {reason[:300]}"
            ) from error


def build_model(options: argparse.Namespace) -> OnnxModel:
    """Build the model of a config in evaluation mode on the CPU, and fetch one batch."""
    job = job_from(options, training=False)
    inputs = map_tensors(lambda tensor: tensor.cpu(), _first_inputs(job, options))
    return OnnxModel(unwrap(job.trainer.engine.model).cpu().eval(), inputs)


def _first_inputs(job: Job, options: argparse.Namespace) -> Any:
    """Return the inputs of the first batch for prediction, else validation, else training."""
    loader = job.predict_loader if job.predict_loader is not None else job.val_loader
    if loader is None:
        loader = job_from(options).train_loader
    if isinstance(loader, Mapping):
        loader = next(iter(loader.values()))
    batch = next(iter(loader), None)
    if batch is None:
        raise ConfigError("the config's loader is empty: the model's inputs are unknown")
    return split_inputs(batch)[0]


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments that inputs become in a call of the model."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    return (inputs,), {}


def _dynamic_first(tensor: Tensor) -> Any:
    return {0: torch.export.Dim.AUTO} if tensor.ndim else None
