"""``stoker ckpt show``: print the contents of a checkpoint."""

import argparse
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from math import prod
from typing import Any

from stoker.checkpoint.format.manifest import metrics_in
from stoker.checkpoint.format.state_tree import Json
from stoker.checkpoint.format.validation import reading
from stoker.checkpoint.read.stored_tensors import StoredTensor
from stoker.cli.ckpt.contents import Contents, bytes_of, dtype_name
from stoker.cli.ckpt.find import find_one, format_age, saved_at
from stoker.cli.common import OK, given_path
from stoker.cli.output import emit
from stoker.storage import display, format_size


def show(options: argparse.Namespace) -> int:
    """Print the contents of a checkpoint."""
    contents = Contents.read(find_one(given_path(options.path)), verify=False)
    parts = (_head, _metrics, _settings, _model, _optimizers, _hooks, _others, _files)
    with reading(f"checkpoint '{contents.path}'"):
        lines = [line for part in parts for line in part(contents)]
        emit("checkpoint_contents", lines, **_plain(contents))
    return OK


def _plain(contents: Contents) -> dict[str, Any]:
    manifest = contents.manifest
    return {
        "path": str(contents.path),
        "step": manifest.step,
        **{name: value for name, value in manifest.info.items() if name != "metrics"},
        "metrics": metrics_in(manifest.info),
        "saved": datetime.fromtimestamp(saved_at(contents.path), UTC).isoformat(timespec="seconds"),
        "world_size": manifest.world_size,
        "run": contents.part("run"),
        "hooks": contents.part("hooks"),
        "tensors": {
            name: {"dtype": dtype_name(one), "shape": list(one.shape), "bytes": bytes_of(one)}
            for name, one in sorted(contents.stored.tensors.items())
        },
        "files": {
            name: {"bytes": record.size, "xxh3_128": record.xxh3_128}
            for name, record in manifest.files.items()
        },
    }


def _head(contents: Contents) -> Iterator[str]:
    manifest, run = contents.manifest, contents.part("run")
    counters = {
        name: value
        for name, value in manifest.info.items()
        if isinstance(value, int | float | str) and name != "step"
    }
    yield display(contents.path)
    parts = [f"step {manifest.step}", *(f"{name} {value}" for name, value in counters.items())]
    if run.get("stage") == "within":
        parts.append("within an epoch")
    if run.get("ended"):
        parts.append(f"run ended: {run['ended']}")
    yield f"  {', '.join(parts)}"
    when = datetime.fromtimestamp(saved_at(contents.path)).astimezone()
    age = format_age(time.time() - saved_at(contents.path))
    processes = "1 process" if manifest.world_size == 1 else f"{manifest.world_size} processes"
    yield f"  saved {when:%Y-%m-%d %H:%M:%S} ({age} ago) by {processes}"


def _metrics(contents: Contents) -> Iterator[str]:
    metrics = metrics_in(contents.manifest.info)
    shown = {name: value for name, value in metrics.items() if name not in ("epoch", "step")}
    yield from _section("metrics", {name: f"{value:.6g}" for name, value in shown.items()})


def _settings(contents: Contents) -> Iterator[str]:
    settings = contents.manifest.info.get("settings") or {}
    yield from _section("settings", {name: _setting(value) for name, value in settings.items()})


def _setting(value: Any) -> str:
    """Format a setting; values of several optimizers are preceded by their names."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}".strip() for name, one in value.items()) or "none"
    return "none" if value is None else str(value)


def _model(contents: Contents) -> Iterator[str]:
    # the first has the order of the model, the second also has tied tensors
    stored = contents.tensors(contents.part("model")) | contents.stored.tensors
    tensors = {
        name.removeprefix("model."): one
        for name, one in stored.items()
        if name.startswith("model.")
    }
    if not tensors:
        return
    yield f"model: {_sum(tensors)}"
    modules: dict[str, dict[str, StoredTensor]] = {}
    for name, one in tensors.items():
        modules.setdefault(name.partition(".")[0], {})[name] = one
    for module, of_module in modules.items():
        yield f"  {module}: {_sum(of_module)}"
        for line in _table(_grouped(of_module)):
            yield f"    {line}"


def _optimizers(contents: Contents) -> Iterator[str]:
    optimizers = contents.part("engine", "optimizers")
    for name, state in optimizers.items():
        tensors = contents.tensors(state)
        yield f"{f'optimizer {name}'.strip()}: {_sum(tensors)}"
        kinds: dict[str, dict[str, StoredTensor]] = {}
        for key, one in tensors.items():
            kinds.setdefault(key.rpartition(".")[2], {})[key] = one
        lines = {kind: _sum(of_kind) for kind, of_kind in kinds.items()}
        for number, group in enumerate(state.get("param_groups", ())):
            lines[f"group {number}"] = _group(group)
        for line in _table(lines):
            yield f"  {line}"


def _group(group: Json) -> str:
    plain = {
        name: value
        for name, value in group.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    values = [f"{name} {value:g}" for name, value in plain.items()]
    return ", ".join([f"{len(group['params'])} parameters", *values])


def _hooks(contents: Contents) -> Iterator[str]:
    states = contents.part("hooks")
    with_state = {name: state for name, state in states.items() if state}
    yield from _section(
        "hooks with state",
        {name: _state(contents, state) for name, state in with_state.items()},
    )
    if len(states) > len(with_state):
        yield f"hooks without state: {', '.join(name for name in states if name not in with_state)}"


def _state(contents: Contents, state: Json) -> str:
    """Format the first plain values of a state and the size of its tensors."""
    parts = [f"{name} {value}" for name, value in _plain_values(state)][:6]
    tensors = contents.tensors(state)
    if tensors:
        parts.append(_sum(tensors))
    return ", ".join(parts) or "lists of values"


def _plain_values(state: Json, path: str = "") -> Iterator[tuple[str, str]]:
    for name, value in state.items() if isinstance(state, dict) else ():
        if name.startswith("$"):
            continue
        if isinstance(value, dict):
            yield from _plain_values(value, f"{path}{name}.")
        elif not isinstance(value, list):
            yield f"{path}{name}", f"{value:.6g}" if isinstance(value, float) else str(value)


def _others(contents: Contents) -> Iterator[str]:
    """Yield tensors that belong to none of the above, such as those of a criterion."""
    known = set(contents.tensors(contents.part("engine", "optimizers")))
    known |= set(contents.tensors(contents.part("hooks")))
    left = {
        name: one
        for name, one in contents.stored.tensors.items()
        if name not in known and not name.startswith("model.")
    }
    yield from _section("other tensors", {n: _shape(one) for n, one in sorted(left.items())})


def _files(contents: Contents) -> Iterator[str]:
    files = contents.manifest.files
    total = format_size(sum(record.size for record in files.values()))
    sizes = {name: format_size(record.size) for name, record in files.items()}
    yield from _section(f"files: {len(files)}, {total}", sizes)


def _section(title: str, lines: dict[str, str]) -> Iterator[str]:
    if lines:
        yield title
        for line in _table(lines):
            yield f"  {line}"


def _table(lines: dict[str, str]) -> list[str]:
    width = max(map(len, lines), default=0)
    return [f"{name:<{width}}  {text}" for name, text in lines.items()]


def _grouped(tensors: dict[str, StoredTensor]) -> dict[str, str]:
    """Return shapes by name; numbered layers with equal shapes are grouped in one line."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, one in tensors.items():
        first, dot, rest = name.partition(".")
        pattern = first + dot + re.sub(r"(?<![^.])\d+(?![^.])", "*", rest)
        groups.setdefault((pattern, _shape(one)), []).append(name)
    lines = {}
    for (pattern, shape), names in groups.items():
        if len(names) == 1:
            lines[names[0]] = shape
        else:  # layers of one pattern may have several shapes
            label = pattern if pattern not in lines else f"{pattern} from {names[0]}"
            lines[label] = f"{shape} × {len(names)}"
    return lines


def _shape(stored: StoredTensor) -> str:
    return f"{list(stored.shape)} {dtype_name(stored)}"


def _sum(tensors: dict[str, StoredTensor]) -> str:
    numbers = sum(prod(one.shape) for one in tensors.values())
    size = format_size(sum(map(bytes_of, tensors.values())))
    plural = "" if len(tensors) == 1 else "s"
    return f"{len(tensors)} tensor{plural}, {numbers:,} numbers, {size}"
