"""The kinds of pipeline schedules, and the number of micro-batches that each needs."""

from typing import Literal, TypeAlias, get_args

from stoker.core.errors import did_you_mean

ScheduleKind: TypeAlias = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]


def check_kind(kind: str) -> None:
    """Raise an error for an unknown kind of schedule."""
    if kind not in get_args(ScheduleKind):
        raise ValueError(
            f"pipeline schedule {kind!r} is unknown: expected "
            f"{', '.join(get_args(ScheduleKind))}{did_you_mean(str(kind), get_args(ScheduleKind))}"
        )


def microbatches_for(kind: str, count: int | None, processes: int, virtual: int) -> int:
    """Return the number of micro-batches, checked against the schedule and the stages.

    Args:
        kind: the kind of schedule.
        count: the requested number; one for each stage if None.
        processes: the number of processes in the pipeline.
        virtual: the number of stages per process.
    """
    stages = processes * virtual
    if kind in ("gpipe", "1f1b") and virtual != 1:
        raise ValueError(
            f"{kind} has one stage per process, but the layout has virtual={virtual}: leave it "
            "out, or use 'interleaved' or 'zero-bubble'"
        )
    if kind == "interleaved" and virtual == 1:
        raise ValueError(
            "interleaved has several stages per process, but the layout has virtual=1: "
            "use Layout(virtual=2) or more"
        )
    count = stages if count is None else count
    problem = microbatch_error(kind, count, processes, virtual)
    if problem is not None:
        raise ValueError(problem)
    return count


def microbatch_error(kind: str, count: int, processes: int, virtual: int) -> str | None:
    """Return why a schedule cannot run that many micro-batches; None if it can."""
    stages = processes * virtual
    if kind == "1f1b" and count < stages:
        return (
            f"{count} micro-batches are too few for {stages} stages: 1f1b needs at least as "
            "many as there are stages"
        )
    if kind in ("interleaved", "zero-bubble") and count % processes:
        return f"{count} micro-batches are not a multiple of {processes} processes, as {kind} needs"
    return None
