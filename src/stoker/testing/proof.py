"""The proof that a training resumes exactly: kill it, start it again, compare everything."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TypeAlias

from stoker.build import assembled
from stoker.config import Config, ConfigError, load
from stoker.config.lazy import Section
from stoker.core.errors import StokerError
from stoker.testing.attempt import Attempt, Failure, Make
from stoker.testing.compare import Difference, compared, first_difference
from stoker.testing.kill import KINDS, Kill, check_kinds, plan
from stoker.testing.record import Records
from stoker.testing.verdict import KillMade, Verdict

Training: TypeAlias = Make | Config | str | Path
"""A function that trains in a given run folder, or a config, or the path of one."""

_LONG = 60.0
_PATIENCE = 10


def assert_resumes_exactly(
    make: Training,
    *,
    kills: int = 5,
    at: Sequence[str] = KINDS,
    seed: int = 0,
    nproc: int = 1,
) -> Verdict:
    """Fail unless a training that is killed again and again ends at the same bits.

    >>> def train(run_dir):
    ...     trainer = Trainer(Engine(model(), …), run_dir=run_dir)
    ...     trainer.fit(loader, epochs=2)
    >>> assert_resumes_exactly(train)

    The training runs once undisturbed, and once more with kills from outside (SIGKILL), started
    again each time with the same call. Batches, losses, weights, the state of optimizers,
    schedulers and hooks, random numbers, counters and ``metrics.jsonl`` must be the same after
    every step. Each run is a fork of this process, with one thread for each operation: a fork of
    a process that has used more would hang. POSIX only.

    Args:
        make: a function that is given a run folder, builds everything anew and trains; or a
            config, or the path of one.
        kills: how often it is killed.
        at: the kinds of moments: in a "step", a "save", a validation ("eval"), or while "data" is
            fetched.
        seed: another one means other moments.
        nproc: how many processes train together, on this machine. A kill hits one of them, and
            then the others; what each of them has is compared.

    Returns:
        the verdict, whose `text` says what was done.

    Raises:
        AssertionError: it ends at other bits; with the first thing that differs.
        ConfigError: the training saves nothing that it could go on from, or saves it elsewhere.
        StokerError: the reference fails, or has no such moments.
    """
    with working_folder() as folder:
        verdict = prove(make, folder, kills=kills, at=at, seed=seed, nproc=nproc, threads=1)
    if not verdict.same:
        raise AssertionError(verdict.text())
    return verdict


def prove(
    make: Training,
    folder: Path,
    *,
    kills: int = 5,
    at: Sequence[str] = KINDS,
    seed: int = 0,
    nproc: int = 1,
    threads: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """The same as `assert_resumes_exactly`, but a difference is only told.

    Args:
        make: the training.
        folder: an empty folder to work in; it is left as it is in the end.
        kills: how often it is killed.
        at: the kinds of moments.
        seed: of the moments.
        nproc: how many processes train together.
        threads: for one operation; None leaves it to the training, which is safe where this
            process has computed nothing yet. Several processes have one each.
        say: is told what happens, a line at a time.
    """
    check_kinds(at)
    if kills < 1:
        raise ValueError(f"a run that is to be killed is killed at least once, got kills={kills}")
    if nproc < 1:
        raise ValueError(f"a run has at least one process, got nproc={nproc}")
    if nproc > 1:
        threads = threads or 1
    proof = _Proof(_as_function(make), folder, threads, nproc, say)
    return proof.run(kills, at, seed)


@contextmanager
def working_folder(*, keep: bool = False) -> Iterator[Path]:
    """A new temporary folder, gone in the end unless it is to be kept."""
    folder = Path(tempfile.mkdtemp(prefix="stoker-prove-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _as_function(make: Training) -> Make:
    """What trains in a run folder; a config writes there, wherever it says."""
    if callable(make):
        return make
    config = make if isinstance(make, Config) else load(make)
    if config.resolved()["run"]["dir"] is None:
        raise ConfigError(
            "run.dir is null, so the run saves nothing that it could go on from: leave it out, or "
            "name a folder"
        )

    def train(run_dir: Path) -> None:
        config.tree.setdefault("run", Section())["dir"] = str(run_dir)
        assembled(config).fit()

    return train


@dataclass
class _Proof:
    """The reference, the attempts, and what is found."""

    make: Make
    folder: Path
    threads: int | None
    processes: int
    say: Callable[[str], None]
    seconds: float = 0.0

    def run(self, count: int, kinds: Sequence[str], seed: int) -> Verdict:
        reference = self._reference()
        kills = plan(reference, count, kinds, seed)
        notes = []
        if "eval" in kinds and not reference[0].evals:
            notes.append("the run has no validation to be killed in")
        if not kills:
            raise StokerError(f"there is no moment to kill this run at: it has no {kinds}")
        failed, made = self._killed(kills)
        if not made and not failed:
            raise StokerError("the run came to its end before it could be killed")
        attempts = [self._attempt(number) for number in range(len(made) + 1)]
        other = _read(attempts)
        difference = self._judged(reference, attempts, other, failed)
        if failed:
            notes.append(f"what it said last:{attempts[-1].last_words(failed.rank)}")
        elif len(made) < count:
            notes.append(f"{count} kills were asked for; the run came to its end before the others")
        made = [replace(one, came_from=other[0].came_from.get(n)) for n, one in enumerate(made, 1)]
        amounts, steps = compared(reference), len(reference[0].steps)
        return Verdict(steps, made, count, amounts, difference, notes, self.seconds, self.processes)

    def _reference(self) -> list[Records]:
        """What each process does undisturbed."""
        _bring_in(self.processes)
        attempt = Attempt(
            self.make, self.folder / "reference" / "run", 0, self.threads, self.processes
        )
        self.say("reference: runs undisturbed")
        began = monotonic()
        ended = attempt.run()
        self.seconds = monotonic() - began
        if isinstance(ended, Failure):
            if ended.faults:
                raise ConfigError(*ended.faults)
            last_words = attempt.last_words(ended.rank)
            raise StokerError(f"the reference run failed: {ended.text}{last_words}")
        records = _read([attempt])
        self.say(f"reference: {len(records[0].steps)} steps in {self.seconds:.1f} s")
        if self.seconds > _LONG:
            self.say("every attempt may take as long; run.max_steps=… makes it shorter")
        return records

    def _killed(self, kills: list[Kill]) -> tuple[Failure | None, list[KillMade]]:
        """Run it with kills until it ends; an error of its own ends it, too."""
        made: list[KillMade] = []
        limit = max(_LONG, _PATIENCE * self.seconds)
        for kill in [*kills, None]:
            attempt = self._attempt(len(made))
            ended = attempt.run(kill, limit)
            if isinstance(ended, Failure):
                self.say(f"attempt {len(made) + 1}: failed: {ended.text}")
                return ended, made
            if ended or kill is None:
                self.say(f"attempt {len(made) + 1}: came to its end")
                return None, made
            step = Records.read([attempt.records(kill.rank)]).last_step
            whose = f"rank {kill.rank} " if self.processes > 1 else ""
            made.append(KillMade(f"{whose}{kill}", step))
            self.say(f"attempt {len(made)}: killed after step {step}, {whose}{kill}")
        return None, made

    def _attempt(self, number: int) -> Attempt:
        run_dir = self.folder / "killed" / "run"
        return Attempt(self.make, run_dir, number, self.threads, self.processes)

    def _judged(
        self,
        reference: list[Records],
        attempts: list[Attempt],
        other: list[Records],
        failed: Failure | None,
    ) -> Difference | None:
        first = _read(attempts[:1])
        for one in first:
            one.ends, one.folders = {}, {}
        if (alone := first_difference([*map(_until, reference, first)], first)) is not None:
            return alone
        if failed:
            return Difference(f"attempt {len(attempts)} failed: {failed.text}")
        return first_difference(reference, other)


def _bring_in(processes: int) -> None:
    """Import what each fork would import for itself, which takes seconds."""
    if processes > 1:
        import stoker.checkpoint.sharding.planner
        import stoker.parallel.pipeline.driver  # noqa: F401


def _read(attempts: list[Attempt]) -> list[Records]:
    """What each process did over these attempts."""
    return [
        Records.read([attempt.records(rank) for attempt in attempts])
        for rank in range(attempts[0].processes)
    ]


def _until(reference: Records, first: Records) -> Records:
    """What of the reference an attempt that was killed has come to."""
    steps = {place: row for place, row in reference.steps.items() if place in first.steps}
    return Records(steps=steps)
