"""The state of a stream: a position as plain values, and what the data and its order were."""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from stoker.core.errors import DataError
from stoker.core.log import get_logger
from stoker.data.streams.cursor import Plan, StreamPosition
from stoker.data.streams.readers import steps_of

_log = get_logger()

_NAMES = ("epoch", "outputs", "record", "offset", "skipped", "named", "mark", "order", "files")
_MOST_FILES = 200
"""Files that are listed in a state; changes of more are only counted."""


def position_state(plan: Plan, epoch: int, position: StreamPosition) -> dict[str, Any]:
    """Return a position as plain values."""
    mark = plan.reader.mark(epoch, position.record)
    return {**asdict(position), "named": list(position.named), "epoch": epoch, "mark": mark}


def position_from(plan: Plan, state: Mapping[str, Any]) -> StreamPosition:
    """Return the position that `position_state` returned, and prepare to read from it."""
    numbers = {name: int(state[name]) for name in ("outputs", "record", "offset", "skipped")}
    outputs, record = numbers["outputs"], numbers["record"]
    if not plan.drops and outputs != -(-record // plan.size):
        raise ValueError(
            f"the position was saved after {outputs} batches and {record} records, but the batch "
            f"size is {plan.size}: expected the same batch size within an epoch"
        )
    if not plan.drops and record > plan.reader.length:  # there is less data than before
        record, outputs = plan.reader.length, plan.outputs or 0
        numbers |= {"record": record, "outputs": outputs}
    plan.reader.seek(int(state["epoch"]), record, state["mark"])
    return StreamPosition(**numbers, named=tuple(state["named"]))


def data_state(plan: Plan) -> dict[str, Any]:
    """Return what identifies the data and its order."""
    sources = plan.reader.sources
    versions = {name: v for source in sources for name, v in source.versions.items()}
    return {
        "fingerprint": "-".join(source.fingerprint for source in sources),
        "files": versions if len(versions) <= _MOST_FILES else {},
        "records": sum(int(source.counts.sum()) for source in sources),
        "order": _order_in(plan.reader.described),
    }


def check_complete(state: Mapping[str, Any]) -> None:
    """Raise a `ValueError` if a state is not what `state_dict` returned."""
    if missing := [name for name in _NAMES if name not in state]:
        raise ValueError(f"the state has no {missing[0]!r}, expected what state_dict() returned")


def check_data(plan: Plan, state: Mapping[str, Any]) -> None:
    """Reject, or log, that the data is not what it was when the state was saved."""
    found = data_state(plan)
    if state["order"] != found["order"]:
        raise ValueError(
            f"the order of the stream has changed since its state was saved: it was "
            f"{state['order']}, and is {found['order']}; expected the same seed, shuffle, weights"
        )
    if state["fingerprint"] == found["fingerprint"]:
        return
    message = (
        f"the data of the stream has changed since its state was saved: "
        f"{_differences(state, found)}"
    )
    if plan.on_change == "refuse":
        raise DataError(
            f"{message}; restore it, or pass on_change='continue' to resume at the same position "
            "of the new order, where records may come twice or not at all"
        )
    _log.warning(f"{message}; records of this epoch may come twice or not at all")


def describe(plan: Plan) -> dict[str, Any]:
    """Return what the batches depend on, for the identity of a run."""
    batch, steps = plan.batching, [*plan.of_sequences, *plan.of_batches]
    return {
        "records": plan.reader.described,
        "pack": asdict(plan.packing) if plan.packing else None,
        "batch": [batch.size, batch.drop_last, batch.collate] if batch else None,
        "steps": [[kind, function] for kind, function in steps],
    }


def count_records(plan: Plan) -> int | None:
    """Return the number of records of an epoch before filters, None if it is not known."""
    return None if plan.reader.length == sys.maxsize else plan.reader.length


def summarize(plan: Plan) -> str:
    """Return the sources and the steps in one line."""
    steps: list[str] = [kind for kind, _ in steps_of(plan.reader)]
    steps += [f"pack({plan.packing.length})"] if plan.packing else []
    steps += [kind for kind, _ in plan.of_sequences]
    steps += [f"batch({plan.batching.size})"] if plan.batching else []
    steps += [kind for kind, _ in plan.of_batches]
    sources = " + ".join(source.summary() for source in plan.reader.sources)
    return " → ".join([sources, *steps])


def _order_in(described: Any) -> str:
    """Return the settings of an order: seeds, windows and shares."""
    if isinstance(described, list):
        return " + ".join(_order_in(one) for one in described)
    inner = next((_order_in(described[k]) for k in ("records", "parts") if k in described), "")
    names = ("shuffle", "seed", "shares", "length")
    own = ", ".join(f"{name} {described[name]}" for name in names if name in described)
    return ", ".join(filter(None, (own, f"({inner})" if own and inner else inner)))


def _differences(saved: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return which files differ, or how the number of records has changed."""
    before, now = saved["files"], found["files"]
    changes = [f"'{name}' was added" for name in now if name not in before]
    changes += [f"'{name}' is missing" for name in before if name not in now]
    changes += [f"'{n}' was rewritten" for n in now if n in before and now[n] != before[n]]
    if not before or not now or not changes:
        return f"it had {saved['records']} records and has {found['records']}"
    more = f" and {len(changes) - 5} more changes" if len(changes) > 5 else ""
    return ", ".join(changes[:5]) + more
