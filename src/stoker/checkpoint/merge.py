"""The shared values of several processes as one tree."""

from stoker.checkpoint.tree import Json
from stoker.errors import CheckpointError


def merge(trees: list[Json]) -> Json:
    """What all ranks have, each adding the keys the others lack; a contradiction is an error."""
    whole = trees[0]
    for rank, tree in enumerate(trees[1:], start=1):
        whole = _join(whole, tree, rank, ())
    return whole


def _join(one: Json, other: Json, rank: int, path: tuple[str, ...]) -> Json:
    if one == other:
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        if "$ordered" in one and "$ordered" in other:
            return one | {
                "$ordered": _join_pairs(one["$ordered"], other["$ordered"], rank, path),
                "notes": _join(one["notes"], other["notes"], rank, path),
            }
        if "$dict" in one and "$dict" in other:
            return {"$dict": _join_pairs(one["$dict"], other["$dict"], rank, path)}
        if not any(key.startswith("$") for key in (*one, *other)):
            return _join_objects(one, other, rank, path)
    raise CheckpointError(
        f"shared → {' → '.join(path)} is {_short(one)} on rank 0 and {_short(other)} on rank "
        f"{rank}, expected the same on all: what belongs to each rank alone goes into 'own'"
    )


def _join_objects(
    one: dict[str, Json], other: dict[str, Json], rank: int, path: tuple[str, ...]
) -> Json:
    joined = dict(one)
    for key, value in other.items():
        joined[key] = _join(one[key], value, rank, (*path, key)) if key in one else value
    return joined


def _join_pairs(one: Json, other: Json, rank: int, path: tuple[str, ...]) -> Json:
    joined = {repr(key): [key, value] for key, value in one}
    for key, value in other:
        known = joined.get(repr(key))
        both = value if known is None else _join(known[1], value, rank, (*path, str(key)))
        joined[repr(key)] = [key, both]
    return list(joined.values())


def _short(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
