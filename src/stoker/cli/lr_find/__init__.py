"""``stoker lr-find``: sweep the learning rate, suggest a value and plot the loss."""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from stoker.cli.common import FAILED, OK, add_config, frozen_imports, output_path
from stoker.cli.output import emit
from stoker.cli.plot import chart
from stoker.core.errors import ConfigError
from stoker.storage import atomic_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config(parser)
    parser.add_argument(
        "--from", dest="low", type=float, default=1e-7, help="Lowest rate. Default: 1e-7."
    )
    parser.add_argument(
        "--to", dest="high", type=float, default=1.0, help="Highest rate. Default: 1."
    )
    parser.add_argument(
        "--steps", type=int, default=100, help="Updates of the sweep. Default: 100."
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="lr-find.png",
        help="The plot: a .png, .svg or .pdf file. Default: lr-find.png.",
    )


def run(options: argparse.Namespace) -> int:
    """Sweep, print and plot."""
    if not 0 < options.low < options.high < math.inf:
        raise ConfigError(
            "--from must be positive and smaller than --to, "
            f"got --from {options.low:g} --to {options.high:g}"
        )
    if options.steps < 3:
        raise ConfigError(f"--steps must be at least 3, got {options.steps}")
    output = output_path(options.output, "--output", (".png", ".svg", ".pdf"))
    with frozen_imports():
        from stoker.cli.jobs import job_from
        from stoker.cli.lr_find.sweep import lr_find
    options.overrides.append("run.resume=auto")  # the sweep resumes nothing
    job = job_from(options)
    found = lr_find(
        job.trainer, job.train_loader, low=options.low, high=options.high, steps=options.steps
    )
    finite = [loss for loss in found.losses if math.isfinite(loss)]
    if not finite:
        print("stoker: every loss of the sweep is NaN or infinite", file=sys.stderr)
        return FAILED
    head = f"smoothed loss over the learning rate, {found.rates[0]:.1e} to {found.rates[-1]:.1e}"
    plot = _save_plot(found, output)
    emit(
        "lr_find",
        [head, *chart(finite), *([f"plot: {plot}"] if plot else []), _advice(found.suggestion)],
        suggestion=found.suggestion,
        rates=found.rates,
        losses=found.losses,
        plot=plot,
    )
    return FAILED if found.suggestion is None else OK


def _advice(suggestion: float | None) -> str:
    if suggestion is None:
        return "the loss never decreased: try a wider range (--from, --to) or more --steps"
    return f"suggestion: optimizer.lr={suggestion:.2g}  (steepest decrease of the loss)"


def _save_plot(found: Any, path: Path) -> Path | None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot without matplotlib: pip install 'stoker[plot]'", file=sys.stderr)
        return None
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(found.rates, found.losses)
    axes.set(xscale="log", xlabel="learning rate", ylabel="smoothed loss")
    if found.suggestion is not None:
        axes.axvline(found.suggestion, linestyle="--", label=f"{found.suggestion:.2g}")
        axes.legend()
    with atomic_file(path) as temporary:
        figure.savefig(temporary)
    return path
