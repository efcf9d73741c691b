"""`pipeline`: a stream with its steps as plain values, for configs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.core.errors import did_you_mean
from stoker.data.streams.stream import Stream

_STEPS = ("map", "filter", "pack")


def pipeline(
    stream: Stream,
    steps: Sequence[Mapping[str, Any]] = (),
    *,
    batch_size: int | None = None,
    drop_last: bool = False,
    collate: Callable[[list[Any]], Any] | None = None,
) -> Stream:
    """Return a stream after some steps, which a config can list.

        data.pipeline(data.stream("corpus"), [{"map": tokenize}, {"pack": 33}], batch_size=16)

    is ``data.stream("corpus").map(tokenize).pack(33).batch(16)``.

    Args:
        stream: the stream that the steps are applied to.
        steps: mappings of one key: "map" or "filter" with a function, or "pack" with a length or
            with the arguments of `Stream.pack`.
        batch_size: the number of records per batch and process; None leaves records unbatched, to
            be mixed with others.
        drop_last: whether to leave out a last batch that is not full.
        collate: the function that makes a batch of a list of records.
    """
    if not isinstance(stream, Stream):
        raise TypeError(
            f"stream is a {type(stream).__name__}, expected what stoker.data.stream or "
            "stoker.data.mix returns"
        )
    for number, step in enumerate(steps):
        stream = _applied(stream, step, f"steps[{number}]")
    if batch_size is not None:
        return stream.batch(batch_size, drop_last=drop_last, collate=collate)
    if drop_last or collate is not None:
        name = "drop_last" if drop_last else "collate"
        raise ValueError(f"{name} is for batches: set batch_size, too")
    return stream


def _applied(stream: Stream, step: Any, place: str) -> Stream:
    if not isinstance(step, Mapping) or len(step) != 1:
        raise ValueError(
            f"{place} is {step!r}, expected one of {', '.join(_STEPS)} as its only key"
        )
    ((kind, value),) = step.items()
    if kind not in _STEPS:
        near = did_you_mean(str(kind), _STEPS)
        raise ValueError(f"{place} is {kind!r}, expected one of {', '.join(_STEPS)}{near}")
    if kind != "pack":
        applied: Stream = getattr(stream, kind)(value)
        return applied
    return stream.pack(**value) if isinstance(value, Mapping) else stream.pack(value)
