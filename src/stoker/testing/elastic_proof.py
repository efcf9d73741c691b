"""Prove that an elastic training ends at the same bits, whichever processes it loses and gets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

from stoker.core.errors import RankFailed, StokerError
from stoker.testing.attempt import TrainFunction
from stoker.testing.compare import Difference, compared, first_difference
from stoker.testing.elastic_run import ElasticRun, Happened, plan_events
from stoker.testing.record import Records
from stoker.testing.verdict import KillRecord, Verdict

KINDS = ("kill", "preempt", "stop", "remove", "add")
"""What happens to processes; a hang is left out, since a `Heartbeat` waits for minutes."""

_TEXTS = {
    "kill": "a process was killed (SIGKILL)",
    "preempt": "a process was preempted (SIGTERM)",
    "stop": "a process was stopped (SIGSTOP)",
    "hang": "a process hung",
    "remove": "a process was removed (SIGTTOU to the launcher)",
    "add": "a process was added (SIGTTIN to the launcher)",
}


def prove_elastic(
    train: TrainFunction,
    folder: Path,
    *,
    events: int = 5,
    kinds: Sequence[str] = KINDS,
    seed: int = 0,
    nproc: int = 3,
    log: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Lose and add processes of a training at random, and return whether it ended at the same bits.

    The reference is the same training on one process.

    Args:
        train: a function that takes a run folder, which another process can import.
        folder: an empty folder for the runs and records, which are not removed.
        events: how many processes are lost and added.
        kinds: what happens to them.
        seed: selects the moments and the processes.
        nproc: the number of processes to start with, and the largest number.
        log: called with each line of progress.
    """
    if nproc < 2:
        raise ValueError(f"elastic needs at least 2 processes that can be lost, got nproc={nproc}")
    log("reference: running on one process")
    started = monotonic()
    reference = reference_of(train, folder / "reference")
    seconds = monotonic() - started
    log(f"reference: {len(reference.steps)} steps in {seconds:.1f} s")
    planned = plan_events(reference, events, kinds, seed)
    run = ElasticRun(train, folder / "elastic", nproc, nproc, planned)
    failure: Difference | None = None
    happened: list[Happened] = []
    try:
        happened = run.run()
    except RankFailed as error:
        failure = Difference(f"the run failed: {error}")
    for event in happened:
        after = "" if event.seconds is None else f", next step after {event.seconds:.1f} s"
        log(f"after step {event.step}: {_TEXTS[event.kind]}{after}")
    notes = []
    if len(happened) < events:
        notes.append(f"{len(happened)} of {events} events happened: one process has to be left")
    return Verdict(
        len(reference.steps),
        [KillRecord(_TEXTS[event.kind], event.step) for event in happened],
        events,
        compared([reference]),
        failure or difference_of(reference, run.records()),
        notes,
        seconds,
        nproc,
        elastic=True,
    )


def reference_of(train: TrainFunction, folder: Path) -> Records:
    """Train on one process and return what it recorded."""
    run = ElasticRun(train, folder, 1, 1)
    try:
        run.run()
    except RankFailed as error:
        raise StokerError(f"the reference run failed: {error}") from error
    return _without_batches(next(iter(run.records().values())))


def difference_of(reference: Records, processes: Mapping[int, Records]) -> Difference | None:
    """Return the first difference between the processes of a run and its reference.

    Each process must have recorded the same for every step that it has finished, from its first to
    its last; all steps must have been recorded, and one process must have reached the end.
    """
    found = [_without_batches(records) for records in processes.values()]
    for records in found:
        if not records.steps:
            continue
        first, last = min(records.steps), max(records.steps)
        part = {at: one for at, one in reference.steps.items() if first <= at <= last}
        different = first_difference([Records(part)], [Records(records.steps)])
        if different is not None:
            return different
    missing = [at for at in reference.steps if not any(at in one.steps for one in found)]
    if missing:
        return Difference(f"step {missing[0].step}: only the reference has this step")
    for records in found:
        if reference.ends.keys() <= records.ends.keys() and records.folders:
            return first_difference([replace(reference, steps={})], [replace(records, steps={})])
    return Difference("the end of the training: only the reference reached it")


def _without_batches(records: Records) -> Records:
    """Leave out the batches, of which each process has those of its own logical ranks."""
    for record in records.steps.values():
        record.parts.pop("batch", None)
    return records
