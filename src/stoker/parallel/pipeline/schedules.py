"""The orders in which micro-batches go through a pipeline, and how many each of them needs."""

from typing import Literal, TypeAlias, get_args

from stoker.core.errors import did_you_mean

Kind: TypeAlias = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]


def check_kind(kind: str) -> None:
    """Refuse an order that there is not."""
    if kind not in get_args(Kind):
        raise ValueError(
            f"pipeline schedule {kind!r} is unknown: expected "
            f"{', '.join(get_args(Kind))}{did_you_mean(str(kind), get_args(Kind))}"
        )


def microbatches_for(kind: str, count: int | None, processes: int, virtual: int) -> int:
    """The number of micro-batches, made sure to fit the order and the stages.

    Args:
        kind: of order.
        count: as given; one for each stage if None.
        processes: of the pipeline.
        virtual: how many stages each of them has.
    """
    stages = processes * virtual
    if kind in ("gpipe", "1f1b") and virtual != 1:
        raise ValueError(
            f"{kind} has one stage in each process, but the layout has virtual={virtual}: that "
            "is for 'interleaved' and 'zero-bubble'"
        )
    if kind == "interleaved" and virtual == 1:
        raise ValueError(
            "interleaved has several stages in each process, but the layout has virtual=1: "
            "expected Layout(virtual=2) or more"
        )
    count = stages if count is None else count
    fault = fault_of(kind, count, processes, virtual)
    if fault is not None:
        raise ValueError(fault)
    return count


def fault_of(kind: str, count: int, processes: int, virtual: int) -> str | None:
    """Why so many micro-batches cannot go in that order; None if they can."""
    stages = processes * virtual
    if kind == "1f1b" and count < stages:
        return (
            f"{count} micro-batches are too few for {stages} stages: 1f1b needs at least as "
            "many as there are stages"
        )
    if kind in ("interleaved", "zero-bubble") and count % processes:
        return f"{count} micro-batches do not divide by {processes} processes, which {kind} needs"
    return None
