"""``stoker report``: write a report about runs, or print their goodput."""

import argparse
from pathlib import Path
from typing import Any

from stoker.cli.common import FAILED, OK, frozen_imports, given_path, output_path, run_folder
from stoker.cli.output import emit
from stoker.rundir import files

_LOSSES_SHOWN = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="A run folder. Several runs are compared."
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="The .html, .md or .png file to write. Default: report.html.",
    )
    parser.add_argument(
        "--format",
        choices=("html", "md", "png"),
        help="The format. Default: from the suffix of FILE.",
    )
    parser.add_argument(
        "--goodput",
        action="store_true",
        help="Only print the share of useful time and the largest losses.",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="Check the sizes of checkpoint files instead of every byte.",
    )


def run(options: argparse.Namespace) -> int:
    """Print the goodput of runs, or write a report about them."""
    paths = [run_folder(given_path(path, "the run")) for path in options.runs]
    if options.goodput:
        return max([_print_goodput(path) for path in paths])
    return _write(options, paths)


def _print_goodput(path: Path) -> int:
    from stoker.rundir.goodput import goodput_of
    from stoker.rundir.reader import RunReader

    reader = RunReader(path)
    attempts = reader.attempts()
    lines = [f"{path}: {fault}" for fault in reader.faults]
    if not attempts:
        lines.append(f"{path}: goodput is unknown: it has no readable {files.LEDGER}")
        emit("goodput", lines, run=path, share=None, seconds={}, attempts=0, faults=reader.faults)
        return FAILED
    found = goodput_of(attempts)
    emit(
        "goodput",
        [*lines, *_goodput_lines(path, found)],
        run=path,
        share=found.share,
        seconds=found.seconds,
        attempts=len(found.attempts),
        faults=reader.faults,
    )
    return OK


def _goodput_lines(path: Path, found: Any) -> list[str]:
    from stoker.events.writers.console import format_seconds
    from stoker.rundir.goodput import format_share

    count = len(found.attempts)
    useful, total = format_seconds(found.seconds["train"]), format_seconds(found.total)
    attempts = "1 attempt" if count == 1 else f"{count} attempts"
    lines = [
        f"{path}: goodput {format_share(found.share)}",
        f"  useful training {useful} of {total}, in {attempts}",
    ]
    for loss in found.losses[:_LOSSES_SHOWN]:
        steps = f"  ({found.repeated_steps} steps)" if loss.kind == "again" else ""
        share, seconds = format_share(loss.share), format_seconds(loss.seconds)
        lines.append(f"  {loss.name:<24}{share:>8}  {seconds}{steps}")
    return lines


def _write(options: argparse.Namespace, paths: list[Path]) -> int:
    with frozen_imports():
        from stoker.report.output import FORMATS, write_report

    suffixes = () if options.format else tuple(f".{name}" for name in FORMATS)
    name = options.output or f"report.{options.format or 'html'}"
    output = output_path(name, "--output", suffixes)
    kind = options.format or output.suffix.removeprefix(".")
    written = [str(path) for path in write_report(paths, output, kind, quick=options.quick)]
    emit("report", written, runs=paths, files=written)
    return OK
