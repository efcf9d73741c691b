"""Prove that a training resumes exactly: kill it, start it again, and compare everything."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TypeAlias

from stoker.build import build_job
from stoker.config import Config, ConfigError, load
from stoker.config.lazy import Section
from stoker.config.trust import Override
from stoker.core.errors import StokerError
from stoker.testing.attempt import (
    KINDS,
    Attempt,
    Failure,
    Kill,
    TrainFunction,
    check_kinds,
    plan_kills,
)
from stoker.testing.compare import Difference, compared, first_difference
from stoker.testing.elastic_proof import prove_elastic
from stoker.testing.record import Records
from stoker.testing.verdict import KillRecord, Verdict

Training: TypeAlias = TrainFunction | Config | str | Path
"""A function that trains in a given run folder, a config, or the path of a config."""

_LONG_SECONDS = 60.0
_TIMEOUT_FACTOR = 10


def assert_resumes_exactly(
    train: Training,
    *,
    kills: int = 5,
    at: Sequence[str] = KINDS,
    seed: int = 0,
    nproc: int = 1,
) -> Verdict:
    """Fail unless a training that is killed repeatedly ends at the same bits.

    >>> def train(run_dir):
    ...     trainer = Trainer(Engine(model(), …), run_dir=run_dir)
    ...     trainer.fit(loader, epochs=2)
    >>> assert_resumes_exactly(train)

    The training runs once without interruption as the reference. Then it runs again, is killed
    with SIGKILL ``kills`` times, and is started again each time with the same call. Batches,
    losses, weights, the state of optimizers, schedulers and hooks, random numbers, counters and
    ``metrics.jsonl`` must be the same after every step.

    Each run is a fork of this process and uses one thread, because a fork of a process that has
    used several would hang. POSIX only.

    Args:
        train: A function that takes a run folder, builds everything from scratch and trains; or a
            config, or the path of a config.
        kills: How often to kill the training.
        at: The kinds of moments: during a ``"step"``, a ``"save"``, a validation (``"eval"``), or
            while fetching ``"data"``.
        seed: Selects the moments.
        nproc: How many processes train together on this machine. A kill ends one of them first and
            then the others. All of them are compared.

    Returns:
        The verdict; its method `text` returns a report.

    Raises:
        AssertionError: The training ends at different bits; the message has the first difference.
        ConfigError: The training saves no checkpoints, or saves them outside the run folder.
        StokerError: The reference run fails, or has none of the requested moments.
    """
    with working_folder() as folder:
        verdict = prove(train, folder, kills=kills, at=at, seed=seed, nproc=nproc, threads=1)
    if not verdict.same:
        raise AssertionError(verdict.text())
    return verdict


def prove(
    train: Training,
    folder: Path,
    *,
    kills: int = 5,
    at: Sequence[str] = KINDS,
    seed: int = 0,
    nproc: int = 1,
    threads: int | None = None,
    elastic: bool = False,
    log: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Kill a training repeatedly and return whether it ended at the same bits.

    Unlike `assert_resumes_exactly` this does not raise if there is a difference.

    Args:
        train: A function that takes a run folder, a config, or the path of a config.
        folder: An empty folder for the runs, records and logs, which are not removed.
        kills: How often to kill the training.
        at: The kinds of moments.
        seed: Selects the moments.
        nproc: How many processes train together.
        threads: The number of threads per process. None keeps torch's default, which is safe only
            if this process has not used torch yet. Several processes use one thread each.
        elastic: Lose and add single processes while the others continue, instead of restarting all.
            The training needs logical ranks, and ``at`` does not apply.
        log: Called with each line of progress.
    """
    check_kinds(at)
    if kills < 1:
        raise ValueError(f"kills must be at least 1, got {kills}")
    if nproc < 1:
        raise ValueError(f"nproc must be at least 1, got {nproc}")
    if elastic:
        function = _as_function(train)
        return prove_elastic(function, folder, events=kills, seed=seed, nproc=nproc, log=log)
    if nproc > 1:
        threads = threads or 1
    proof = _Proof(_as_function(train), folder, threads, nproc, log)
    return proof.run(kills, at, seed)


@contextmanager
def working_folder(*, keep: bool = False) -> Iterator[Path]:
    """Create a temporary folder for the block; ``keep`` leaves it in place."""
    folder = Path(tempfile.mkdtemp(prefix="stoker-prove-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _as_function(training: Training) -> TrainFunction:
    """Return a function that trains in a run folder; it replaces ``run.dir`` of a config."""
    if callable(training):
        return training
    config = training if isinstance(training, Config) else load(training)
    if config.resolved()["run"]["dir"] is None:
        raise ConfigError(
            "run.dir is null, so the run saves no checkpoints to resume from: remove it, or set it "
            "to a folder"
        )

    return _ConfigTraining(config)


@dataclass(frozen=True)
class _ConfigTraining:
    """The training of a config; another process can unpickle it."""

    config: Config

    def __call__(self, run_dir: Path) -> None:
        run = self.config.tree.setdefault("run", Section())
        run["dir"], run.origins["dir"] = str(run_dir), Override("the folder of a proof")
        build_job(self.config).fit()


@dataclass
class _Proof:
    """Runs the reference and the attempts, and compares them."""

    train: TrainFunction
    folder: Path
    threads: int | None
    processes: int
    log: Callable[[str], None]
    seconds: float = 0.0

    def run(self, count: int, kinds: Sequence[str], seed: int) -> Verdict:
        reference = self._reference()
        kills = plan_kills(reference, count, kinds, seed)
        notes = []
        if "eval" in kinds and not reference[0].evals:
            notes.append("the run has no validation, so it was not killed during one")
        if not kills:
            raise StokerError(
                f"the run has none of the requested moments ({', '.join(kinds)}) to be killed at"
            )
        failure, done = self._run_with_kills(kills)
        if not done and not failure:
            raise StokerError("the run ended before it could be killed")
        attempts = [self._attempt("killed", number) for number in range(len(done) + 1)]
        other = _read(attempts)
        difference = _compare(reference, attempts, other, failure)
        if failure:
            notes.append(f"the last lines of its log:{attempts[-1].log_tail(failure.rank)}")
        elif len(done) < count:
            notes.append(f"the run ended after {len(done)} of {count} requested kills")
        resumed_from = other[0].resumed_from
        done = [replace(kill, resumed_from=resumed_from.get(n)) for n, kill in enumerate(done, 1)]
        amounts, steps = compared(reference), len(reference[0].steps)
        return Verdict(steps, done, count, amounts, difference, notes, self.seconds, self.processes)

    def _reference(self) -> list[Records]:
        """Run the training without kills and return the records of each process."""
        _preload(self.processes)
        attempt = self._attempt("reference", 0)
        self.log("reference: running without kills")
        started = monotonic()
        ended = attempt.run()
        self.seconds = monotonic() - started
        if isinstance(ended, Failure):
            if ended.config_errors:
                raise ConfigError(*ended.config_errors)
            tail = attempt.log_tail(ended.rank)
            raise StokerError(f"the reference run failed: {ended.text}{tail}")
        records = _read([attempt])
        self.log(f"reference: {len(records[0].steps)} steps in {self.seconds:.1f} s")
        if self.seconds > _LONG_SECONDS:
            self.log("every attempt may take as long: set run.max_steps=… to make it shorter")
        return records

    def _run_with_kills(self, kills: list[Kill]) -> tuple[Failure | None, list[KillRecord]]:
        """Run the training with kills until it ends or fails."""
        done: list[KillRecord] = []
        limit = max(_LONG_SECONDS, _TIMEOUT_FACTOR * self.seconds)
        for kill in [*kills, None]:
            attempt = self._attempt("killed", len(done))
            ended = attempt.run(kill, limit)
            if isinstance(ended, Failure):
                self.log(f"attempt {len(done) + 1}: failed: {ended.text}")
                return ended, done
            if ended or kill is None:
                self.log(f"attempt {len(done) + 1}: finished")
                return None, done
            step = Records.read([attempt.records(kill.rank)]).last_step
            prefix = f"rank {kill.rank} " if self.processes > 1 else ""
            done.append(KillRecord(f"{prefix}{kill}", step))
            self.log(f"attempt {len(done)}: killed after step {step}, {prefix}{kill}")
        return None, done

    def _attempt(self, folder: str, number: int) -> Attempt:
        run_dir = self.folder / folder / "run"
        return Attempt(self.train, run_dir, number, self.threads, self.processes)


def _compare(
    reference: list[Records],
    attempts: list[Attempt],
    other: list[Records],
    failure: Failure | None,
) -> Difference | None:
    """Return the first difference, starting with one that was there before the first kill."""
    first = _read(attempts[:1])
    for records in first:
        records.ends, records.folders = {}, {}
    before_kills = first_difference([*map(_until, reference, first)], first)
    if before_kills is not None:
        return before_kills
    if failure:
        return Difference(f"attempt {len(attempts)} failed: {failure.text}")
    return first_difference(reference, other)


def _preload(processes: int) -> None:
    """Import modules that every fork would otherwise import itself, which takes seconds."""
    if processes > 1:
        import stoker.checkpoint.sharding.planner
        import stoker.parallel.pipeline.driver  # noqa: F401


def _read(attempts: list[Attempt]) -> list[Records]:
    """Return the records of each process over these attempts."""
    return [
        Records.read([attempt.records(rank) for attempt in attempts])
        for rank in range(attempts[0].processes)
    ]


def _until(reference: Records, first: Records) -> Records:
    """Return the steps of the reference that the first attempt reached, too."""
    steps = {at: record for at, record in reference.steps.items() if at in first.steps}
    return Records(steps=steps)
