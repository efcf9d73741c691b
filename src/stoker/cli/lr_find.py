"""``stoker lr-find``: a sweep, a suggestion, and a plot."""

import argparse
import math
import sys
from pathlib import Path

from stoker.cli.exit_codes import FAILED, OK
from stoker.cli.lr_sweep import Sweep
from stoker.cli.lr_sweep import lr_find as sweep
from stoker.cli.plot import chart
from stoker.cli.train import made
from stoker.config import ConfigError
from stoker.storage import atomic_file, local_path


def lr_find(options: argparse.Namespace) -> int:
    """Sweep, print, and plot."""
    if not 0 < options.low < options.high:
        raise ConfigError(f"--from is below --to, got {options.low:g} and {options.high:g}")
    if options.steps < 3:
        raise ConfigError(f"--steps is at least 3, got {options.steps}")
    output = local_path(options.output, "--output")
    if output.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"the plot is a .png, .svg or .pdf, got '{options.output}'")
    job = made(options)
    found = sweep(
        job.trainer, job.train_loader, low=options.low, high=options.high, steps=options.steps
    )
    finite = [loss for loss in found.losses if math.isfinite(loss)]
    if not finite:
        print("stoker: no loss of the sweep is a finite number", file=sys.stderr)
        return FAILED
    print(f"loss (smoothed) over the learning rate, {found.rates[0]:.1e} to {found.rates[-1]:.1e}")
    print("\n".join(chart(finite)))
    _save_plot(found, output)
    if found.suggestion is None:
        print("the loss never fell: try --from and --to further apart, or more --steps")
        return FAILED
    print(f"suggestion: optimizer.lr={found.suggestion:.2g}  (where the loss falls fastest)")
    return OK


def _save_plot(found: Sweep, path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture was drawn: pip install 'stoker[plot]'", file=sys.stderr)
        return
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(found.rates, found.losses)
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss, smoothed")
    if found.suggestion is not None:
        axes.axvline(found.suggestion, linestyle="--", label=f"{found.suggestion:.2g}")
        axes.legend()
    with atomic_file(path) as temporary:
        figure.savefig(temporary)
    print(f"plot: {path}")
