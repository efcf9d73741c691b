"""``stoker report``: write a report on runs, or print their goodput."""

import argparse
from pathlib import Path

from stoker.cli.exit_codes import FAILED, OK
from stoker.config.yaml_text import ConfigError
from stoker.core.errors import did_you_mean
from stoker.report.goodput import Goodput, format_seconds, format_share, goodput_of
from stoker.rundir import files
from stoker.rundir.reader import RunReader
from stoker.storage import local_path

_SHOWN = 3


def report(options: argparse.Namespace) -> int:
    """Print the goodput of runs, or write a report on them."""
    paths = [_run(local_path(path, "the run")) for path in options.runs]
    if options.goodput:
        return max([_print_goodput(path) for path in paths])
    return _write(options, paths)


def _run(path: Path) -> Path:
    from stoker.rundir.folder import holds_run

    if not path.exists():
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        near = did_you_mean(path.name, [one.name for one in beside])
        raise ConfigError(f"there is no '{path}'{near}")
    if not path.is_dir() or not holds_run(path):
        inside = sorted(path.iterdir()) if path.is_dir() else []
        runs = [str(one) for one in inside if one.is_dir() and holds_run(one)]
        near = f"; did you mean {' '.join(runs[:5])}?" if runs else ""
        raise ConfigError(f"'{path}' holds no run, expected a run folder{near}")
    return path


def _print_goodput(path: Path) -> int:
    reader = RunReader(path)
    attempts = reader.attempts()
    for fault in reader.faults:
        print(f"{path}: {fault}")
    if not attempts:
        print(f"{path}: goodput is unknown: it has no readable {files.LEDGER}")
        return FAILED
    for line in _goodput_lines(path, goodput_of(attempts)):
        print(line)
    return OK


def _goodput_lines(path: Path, found: Goodput) -> list[str]:
    count = len(found.attempts)
    useful, total = format_seconds(found.seconds["train"]), format_seconds(found.total)
    tries = "1 attempt" if count == 1 else f"{count} attempts"
    lines = [
        f"{path}: goodput {format_share(found.share)}",
        f"  useful training {useful} of {total}, in {tries}",
    ]
    for loss in found.losses[:_SHOWN]:
        steps = f"  ({found.repeated_steps} steps)" if loss.kind == "again" else ""
        share, seconds = format_share(loss.share), format_seconds(loss.seconds)
        lines.append(f"  {loss.name:<24}{share:>8}  {seconds}{steps}")
    return lines


def _write(options: argparse.Namespace, paths: list[Path]) -> int:
    from stoker.report.output import FORMATS, write_report

    output = local_path(options.output or f"report.{options.format or 'html'}", "--output")
    kind = options.format or output.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise ConfigError(f"a report is written to .html, .md or .png, got '{output}'")
    for written in write_report(paths, output, kind, quick=options.quick):
        print(written)
    return OK
