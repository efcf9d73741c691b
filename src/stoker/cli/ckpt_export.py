"""``stoker ckpt export``: the weights of a checkpoint for others."""

import argparse
from pathlib import Path
from typing import Any

from torch import Tensor

from stoker.checkpoint.files import said_size
from stoker.cli.ckpt_contents import verified
from stoker.cli.ckpt_ema import averaged
from stoker.cli.ckpt_find import one_in
from stoker.cli.ckpt_write import check_output, save_pt, save_safetensors
from stoker.cli.main import OK
from stoker.config.text import ConfigError

_SUFFIXES = (".safetensors", ".pt", ".onnx")


def export(options: argparse.Namespace) -> int:
    """Write the weights, averaged ones where asked."""
    output = Path(options.output)
    check_output(output, _SUFFIXES)
    _check_config(options, output)
    contents = verified(one_in(Path(options.path)))
    weights: Any = contents.load(contents.values["model"])
    job = None
    if options.config is not None:
        from stoker.cli.ckpt_onnx import built

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
    size = said_size(output.stat().st_size)
    print(f"{output}: {kind} of step {contents.manifest.step}, {count} tensors, {size}")
    return OK


def _check_config(options: argparse.Namespace, output: Path) -> None:
    if output.suffix == ".onnx":
        if options.config is None:
            raise ConfigError(
                ".onnx needs --config CFG: a checkpoint holds weights, and the config says which "
                "model they are of and what goes into it"
            )
        from stoker.cli.ckpt_onnx import check_packages

        check_packages()
    elif options.config is not None:
        raise ConfigError(f"--config is for .onnx; {output.suffix} needs none")
    if options.allow and options.config is None:
        raise ConfigError("--allow is about a config, but --config names none")
