"""``stoker ckpt export``: write the weights of a checkpoint to one file."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from stoker.checkpoint import CheckpointError
from stoker.checkpoint.format.state_tree import Json
from stoker.cli.ckpt.contents import Contents, read_verified
from stoker.cli.ckpt.find import find_one
from stoker.cli.ckpt.weights_file import checked_output, save_pt, save_safetensors
from stoker.cli.common import OK, given_path
from stoker.cli.output import emit
from stoker.core.errors import ConfigError
from stoker.storage import format_size


def _mapping(contents: Contents, node: Json) -> Mapping[str, Any]:
    found = contents.load(node)
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise CheckpointError(f"'{contents.path}' holds weights without names")
    return found


def _averaged(contents: Contents, weights: Mapping[str, Any]) -> Any:
    """Return the weights with averaged parameters; buffers are unchanged."""
    held = {
        name: state["average"]
        for name, state in contents.part("hooks").items()
        if isinstance(state, dict) and list(state) == ["average"]
    }
    if len(held) != 1:
        found = f"the hooks {', '.join(held)} do" if held else "none of its hooks does"
        raise ConfigError(
            f"--ema needs exactly one hook that averages weights; in '{contents.path}', {found}"
        )
    ((hook, node),) = held.items()
    average = _mapping(contents, node)
    if not average:
        raise ConfigError(
            f"hook '{hook}' has no average in '{contents.path}': it had not started yet, or had "
            "already copied it into the model"
        )
    new = {id(weights[name]): value for name, value in average.items() if name in weights}
    # tied weights share one tensor, and so one average
    return {name: new.get(id(value), value) for name, value in weights.items()}


_SUFFIXES = (".safetensors", ".pt", ".onnx")


def export(options: argparse.Namespace) -> int:
    """Write the weights, or their average with ``--ema``."""
    output = checked_output(options.output, _SUFFIXES)
    _check_config(options, output)
    contents = read_verified(find_one(given_path(options.path)))
    weights = _mapping(contents, contents.values["model"])
    model = None
    if options.config is not None:
        from stoker.cli.ckpt.onnx import build_model

        model = build_model(options)
    if options.ema:
        weights = _averaged(contents, weights)
    if model is not None:
        model.export(weights, output)
    elif output.suffix == ".pt":
        save_pt(output, weights)
    else:
        save_safetensors(output, weights)
    count = sum(isinstance(value, Tensor) for value in weights.values())
    kind = "averaged weights" if options.ema else "weights"
    size, step = output.stat().st_size, contents.manifest.step
    text = f"{output}: {kind} of step {step}, {count} tensors, {format_size(size)}"
    emit("export", text, output=output, step=step, tensors=count, size=size, ema=options.ema)
    return OK


def _check_config(options: argparse.Namespace, output: Path) -> None:
    if output.suffix == ".onnx":
        if options.config is None:
            raise ConfigError(
                ".onnx needs --config CFG: a checkpoint contains only weights, and the config "
                "defines the model and its inputs"
            )
        from stoker.cli.ckpt.onnx import check_packages

        check_packages()
    elif options.config is not None:
        raise ConfigError(f"--config applies only to .onnx, not to {output.suffix}")
    if options.allow and options.config is None:
        raise ConfigError("--allow needs --config CFG")
