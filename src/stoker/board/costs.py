"""Where the time of a step goes, from ``cost.json`` in a run folder, whoever wrote it."""

import math
from typing import Any

_MOST = 40


def cost_groups(tree: Any) -> dict[str, list[tuple[str, float]]]:
    """Groups of seconds by name, the largest first.

    A group is an object of numbers, or of objects with ``seconds``. A list of rows with ``hook``
    and ``seconds`` is summed up for each hook, and divided by ``steps`` where that is told.
    """
    if not isinstance(tree, dict):
        return {}
    groups: dict[str, dict[str, float]] = {}
    for title, inner in tree.items():
        if isinstance(inner, dict):
            found = {str(name): _seconds(value) for name, value in inner.items()}
            groups[str(title)] = {name: value for name, value in found.items() if value is not None}
        elif isinstance(inner, list):
            groups.setdefault("hooks", {}).update(_by_hook(inner, tree.get("steps")))
    return {
        title[:100]: sorted(((n[:100], s) for n, s in parts.items()), key=lambda p: -p[1])[:_MOST]
        for title, parts in list(groups.items())[:_MOST]
        if parts
    }


def _by_hook(rows: list[Any], steps: Any) -> dict[str, float]:
    sums: dict[str, float] = {}
    for row in rows:
        # a row with a part, such as one metric, is within another of the same hook
        if isinstance(row, dict) and isinstance(row.get("hook"), str) and not row.get("part"):
            sums[row["hook"]] = sums.get(row["hook"], 0.0) + (_seconds(row) or 0.0)
    many = steps if type(steps) is int and 0 < steps < 2**53 else 1
    return {name: total / many for name, total in sums.items()}


def _seconds(value: Any) -> float | None:
    if isinstance(value, dict):
        value = value.get("seconds")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 and math.isfinite(value) else None
