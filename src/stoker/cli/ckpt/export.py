"""The averaged weights in a checkpoint."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from stoker.cli.ckpt.contents import Contents, verified
from stoker.cli.ckpt.find import one_in
from stoker.cli.ckpt.weights_file import check_output, save_pt, save_safetensors
from stoker.cli.exit_codes import OK
from stoker.config.yaml_text import ConfigError
from stoker.storage import format_size, local_path


def averaged(contents: Contents, weights: Mapping[str, Any]) -> Any:
    """The weights with the average in the place of parameters; buffers stay as they are."""
    held = {
        name: state["average"]
        for name, state in contents.part("hooks").items()
        if isinstance(state, dict) and list(state) == ["average"]
    }
    if len(held) != 1:
        found = f"of the hooks {', '.join(held)} do" if held else "none of its hooks does"
        raise ConfigError(
            f"--ema needs one hook that holds an average, but in '{contents.path}' {found}"
        )
    ((hook, node),) = held.items()
    average: Any = contents.load(node)
    if not average:
        raise ConfigError(
            f"hook '{hook}' holds no average in '{contents.path}': it had not begun, or had "
            "already put it into the model"
        )
    new = {id(weights[name]): value for name, value in average.items()}
    return {name: new.get(id(value), value) for name, value in weights.items()}  # tied ones, too


_SUFFIXES = (".safetensors", ".pt", ".onnx")


def export(options: argparse.Namespace) -> int:
    """Write the weights, averaged ones where asked."""
    output = local_path(options.output, "--output")
    check_output(output, _SUFFIXES)
    _check_config(options, output)
    contents = verified(one_in(local_path(options.path)))
    weights: Any = contents.load(contents.values["model"])
    job = None
    if options.config is not None:
        from stoker.cli.ckpt.onnx import built

        job = built(options)
    if options.ema:
        weights = averaged(contents, weights)
    if job is not None:
        job.export(weights, output)
    elif output.suffix == ".pt":
        save_pt(output, weights)
    else:
        save_safetensors(output, weights)
    count = sum(isinstance(value, Tensor) for value in weights.values())
    kind = "averaged weights" if options.ema else "weights"
    size = format_size(output.stat().st_size)
    print(f"{output}: {kind} of step {contents.manifest.step}, {count} tensors, {size}")
    return OK


def _check_config(options: argparse.Namespace, output: Path) -> None:
    if output.suffix == ".onnx":
        if options.config is None:
            raise ConfigError(
                ".onnx needs --config CFG: a checkpoint holds weights, and the config says which "
                "model they are of and what goes into it"
            )
        from stoker.cli.ckpt.onnx import check_packages

        check_packages()
    elif options.config is not None:
        raise ConfigError(f"--config is for .onnx; {output.suffix} needs none")
    if options.allow and options.config is None:
        raise ConfigError("--allow is about a config, but --config names none")
