"""``stoker status``: the state of runs."""

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stoker.cli.common import OK, frozen_imports, given_path, run_folder, runs_in
from stoker.cli.output import emit
from stoker.rundir.states import Ending
from stoker.storage import display


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        default=["runs"],
        help="A run folder, or a folder of runs. Default: runs.",
    )


def run(options: argparse.Namespace) -> int:
    """Print the state of each run."""
    paths = [given_path(path, "the run") for path in options.runs]
    for folder in [one for path in paths for one in runs_in(path) or [run_folder(path)]]:
        emit_status(folder)
    return OK


def emit_status(folder: Path) -> Ending:
    """Print the state of a run, and return it."""
    fields = status_of(folder)
    emit("status", _text(fields), **fields)
    return Ending(fields["state"], fields["why"])


def status_of(folder: Path) -> dict[str, Any]:
    """Return the state, the progress and the latest value of each metric of a run."""
    with frozen_imports():
        from stoker.rundir.reader import RunReader
        from stoker.storage.mirror import refresh
    refresh(folder)
    reader = RunReader(folder)
    reader.read_metrics()
    status = reader.status()
    curves = reader.curves()
    seen = datetime.fromtimestamp(status.seen, UTC).isoformat(timespec="seconds")
    return {
        "run": folder,
        "state": status.state,
        "why": status.why,
        "step": status.step,
        "total_steps": status.total,
        "epoch": status.epoch,
        "epochs": status.epochs,
        "eta_seconds": status.eta,
        "last_write": seen if status.seen else None,
        "metrics": {name: float(c.values[-1]) for name, c in curves.items() if len(c.values)},
        "last_epoch": reader.last_epoch(),
        "faults": reader.faults,
    }


_TITLES = {
    "metrics": "latest values; of training, means over the last steps:",
    "last_epoch": "last epoch; of training, means over all its samples:",
}


def _text(fields: dict[str, Any]) -> list[str]:
    from stoker.cli.ckpt.find import format_age
    from stoker.events.writers.console import format_number
    from stoker.hooks.terminal import format_clock, grid

    why = f": {fields['why']}" if fields["why"] else ""
    counts = [
        f"{name} {fields[one]:,}" + (f"/{fields[of]:,}" if fields[of] is not None else "")
        for name, one, of in (("step", "step", "total_steps"), ("epoch", "epoch", "epochs"))
    ]
    if fields["eta_seconds"] is not None:
        counts.append(f"eta {format_clock(fields['eta_seconds'])}")
    if fields["last_write"] is not None:
        age = time.time() - datetime.fromisoformat(fields["last_write"]).timestamp()
        counts.append(f"last write {format_age(age)} ago")
    lines = [f"{display(fields['run'])}: {fields['state']}{why}", f"  {'  '.join(counts)}"]
    for key, title in _TITLES.items():
        cells = [(name, format_number(name, value)) for name, value in fields[key].items()]
        lines += [f"  {title}", *(f"    {line}" for line in grid(cells, 76))] if cells else []
    return [*lines, *(f"  {fault}" for fault in fields["faults"])]
