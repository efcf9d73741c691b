"""``stoker data``: list, index and check the files of a stream."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.cli import output
from stoker.cli.common import FAILED, OK, USAGE, frozen_imports, set_known
from stoker.cli.output import emit, note
from stoker.core.errors import ConfigError

_ACTIONS = {
    "ls": "List files: size, records, and whether they are indexed.",
    "index": "Index files, so that the first training does not have to.",
    "check": "Read and decode every record. Exit code 1 if one is corrupt.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    parser.set_defaults(print_help=parser.print_help, json=False, quiet=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    for name, help in _ACTIONS.items():
        action = actions.add_parser(name, help=help, description=help)
        action.add_argument(
            "source",
            metavar="SOURCE",
            nargs="+",
            help="Files, a folder, a pattern in quotes, or a URL.",
        )
        action.add_argument(
            "--format",
            metavar="FORMAT",
            help="jsonl, text, parquet or webdataset. Default: by suffix.",
        )
        action.add_argument(
            "--cache",
            metavar="DIR",
            help="The folder of indexes. Default: .stoker-index next to the data.",
        )
        output.add_arguments(action)
        set_known(action)


def run(options: argparse.Namespace) -> int:
    """Run one action."""
    if options.action is None:
        options.print_help()
        return USAGE
    with frozen_imports():
        from stoker.data.streams.index import files_of, format_of
    source = options.source if len(options.source) > 1 else options.source[0]
    cache = Path(options.cache) if options.cache is not None else None
    actions = {"ls": _ls, "index": _index, "check": _check}
    try:
        paths = files_of(source, options.format)
        return actions[options.action](paths, format_of(paths, options.format), cache)
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error


def _ls(paths: list[str], format: Any, cache: Path | None) -> int:
    from stoker.data.streams.files import status_of
    from stoker.data.streams.index import cache_places, read_cache

    folder, files = status_of(paths)
    known = {one.file: one for one in read_cache(cache_places(folder, format.name, cache), folder)}
    names = {one.file.name for one in known.values()}
    rows = []
    for file in files:
        entry = known.get(file)
        state = "changed" if entry is None and file.name in names else "not indexed"
        row = _row(entry, format.name) if entry else _plain_row(file, format.name, state)
        rows.append(row)
    _print(rows)
    return OK


def _index(paths: list[str], format: Any, cache: Path | None) -> int:
    index = _built(paths, format, cache)
    rows = [_row(entry, format.name) for entry in index.entries]
    _print(rows)
    return FAILED if any(row["damage"] for row in rows) else OK


def _check(paths: list[str], format: Any, cache: Path | None) -> int:
    from stoker.data.streams.index import Index

    index, corrupt = _built(paths, format, cache), 0
    for entry in index.entries:
        found = [f"cannot be read from byte {at}: {why}" for at, why in entry.damage]
        found += _corrupt_records(Index(format.name, [entry]), format)
        corrupt += len(found)
        lines = [f"{entry.file.name}: {entry.records} records, {len(found)} corrupt"]
        lines += [f"  {one}" for one in found[:20]]
        path, records = entry.file.path, entry.records
        emit("data_check", lines, path=path, records=records, corrupt=found)
    note(f"{index.records} records in {len(index.entries)} files, {corrupt} corrupt")
    return FAILED if corrupt else OK


def _corrupt_records(index: Any, format: Any) -> Iterator[str]:
    """Yield what is wrong with each record that cannot be decoded."""
    import numpy as np

    from stoker.data.streams.sources import Dropped, FileSource, SourceReader

    reader, at = SourceReader(FileSource(index, format), 0, 0, "skip"), 0
    while at < reader.length:
        positions = np.arange(*reader.span(0, at))
        for one in reader.read(0, positions).get(0, len(positions)):
            if isinstance(one, Dropped):
                yield str(one.reason)
        at += len(positions)


def _built(paths: list[str], format: Any, cache: Path | None) -> Any:
    from stoker.data.streams.index import build_index
    from stoker.data.streams.progress import indexing_bar

    with indexing_bar() as progress:
        return build_index(paths, format, cache, progress=progress)


def _row(entry: Any, format: str) -> dict[str, Any]:
    damage = [f"cannot be read from byte {at}: {why}" for at, why in entry.damage]
    counted = {"records": entry.records, "blocks": len(entry.blocks), "damage": damage}
    return _plain_row(entry.file, format, "damaged" if damage else "indexed") | counted


def _plain_row(file: Any, format: str, state: str) -> dict[str, Any]:
    none: dict[str, Any] = {"records": None, "blocks": None, "damage": []}
    return {"path": file.path, "format": format, "size": file.size, "state": state, **none}


def _print(rows: list[dict[str, Any]]) -> None:
    from stoker.events.writers.console import format_table
    from stoker.storage import format_size

    total = {
        "path": f"{len(rows)} files",
        "format": "",
        "size": sum(row["size"] for row in rows),
        "records": sum(row["records"] or 0 for row in rows),
        "blocks": sum(row["blocks"] or 0 for row in rows),
        "state": "",
    }
    cells = [["file", "format", "size", "records", "blocks", "state"]]
    for row in [*rows, total]:
        counts = ["–" if row[key] is None else f"{row[key]:,}" for key in ("records", "blocks")]
        name = Path(row["path"]).name
        cells.append([name, row["format"], format_size(row["size"]), *counts, row["state"]])
    lines = format_table(cells, left={0, 1, 5}).splitlines()
    lines += [f"{row['path']} {damage}" for row in rows for damage in row["damage"]]
    if not output.is_json():
        emit("data_file", lines)
        return
    for row in rows:
        emit("data_file", **row)
