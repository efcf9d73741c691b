"""Plan when to kill a training: moments of four kinds, spread over its steps."""

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from stoker.core.errors import did_you_mean
from stoker.run import Run
from stoker.testing.record import Position, Recorder, Records

Kind: TypeAlias = Literal["step", "save", "eval", "data"]
KINDS: tuple[str, ...] = get_args(Kind)

_POINTS = {
    "step": ("after_forward", "before_update", "after_step"),
    "eval": ("before_val", "after_val_step", "after_val"),
    "data": ("fetch",),
    "save": (
        *("partial-made", "file-written:1", "file-written:3", "file-synced:1", "file-synced:4"),
        *("before-manifest", "manifest-written", "before-rename", "renamed", "published"),
        "verified",
    ),
}
"""The points of each kind; those of a save are from `stoker.storage.crash_points`."""

_SAVE_POINTS_OF_OTHER_RANKS = ("partial-made", "file-written:1", "file-synced:1", "file-synced:2")
"""The points of a save on ranks other than 0, which only write their own files."""

_KILL_AT_VARIABLE = "STOKER_KILL_AT"


@dataclass(frozen=True)
class Kill:
    """A moment to kill a rank: the first of its kind at or after a position."""

    position: Position
    kind: str
    point: str
    rank: int = 0

    def __str__(self) -> str:
        """Return a description."""
        descriptions = {
            "step": f"during a step, at {self.point}",
            "eval": f"during a validation, at {self.point}",
            "data": "while fetching a batch",
            "save": f"during a save, at {self.point}",
        }
        return descriptions[self.kind]


def check_kinds(kinds: Sequence[str]) -> None:
    """Check the kinds of moments.

    Raises:
        ValueError: A kind is unknown, or there is none.
    """
    for kind in kinds:
        if kind not in KINDS:
            near = did_you_mean(kind, KINDS)
            raise ValueError(f"unknown kind of moment {kind!r}{near} (kinds: {', '.join(KINDS)})")
    if not kinds:
        raise ValueError(f"no kind of moment was given: pass one or more of {', '.join(KINDS)}")


def plan_kills(
    references: Sequence[Records], count: int, kinds: Sequence[str], seed: int
) -> list[Kill]:
    """Return kills spread over the steps of the reference run.

    Args:
        references: The records of the reference, one for each process.
        count: How many kills to plan.
        kinds: The kinds of moments, used in turn.
        seed: The same seed gives the same kills.
    """
    steps, evals = sorted(references[0].steps), sorted(references[0].evals)
    possible = [kind for kind in kinds if kind != "eval" or evals]
    if not steps or not possible:
        return []
    rng = random.Random(seed)
    kills = []
    for number in range(count):
        low, high = number * len(steps) // count, (number + 1) * len(steps) // count
        position = steps[rng.randrange(low, max(high, low + 1))]
        kind = possible[number % len(possible)]
        if kind == "eval":
            position = next((later for later in evals if later >= position), evals[-1])
        rank = rng.randrange(len(references)) if len(references) > 1 else 0
        point = rng.choice(_points(kind, rank, references[rank]))
        kills.append(Kill(position, kind, point, rank))
    return sorted(kills, key=lambda kill: kill.position)


def _points(kind: str, rank: int, reference: Records) -> Sequence[str]:
    """Return the points of a kind that a rank reaches."""
    if kind == "save" and rank > 0:
        return _SAVE_POINTS_OF_OTHER_RANKS
    return [p for p in _POINTS[kind] if p != "after_forward" or reference.has_losses]


class KillableRecorder(Recorder):
    """Record a training, and at the moment of a kill, wait to be killed from outside.

    For a kill during a save, the commit protocol kills its own process with the same signal.

    Args:
        path: The file of the records.
        folder: The folder that must contain the checkpoints of the run.
        kill: The moment, or None to only record.
        on_reached: Called when the moment is reached.
        wait: Blocks until the process is killed.
    """

    def __init__(
        self,
        path: Path,
        folder: Path,
        kill: Kill | None,
        on_reached: Callable[[], None],
        wait: Callable[[], None],
    ) -> None:
        super().__init__(path, folder)
        self._kill, self._on_reached, self._wait = kill, on_reached, wait
        self._reached = False

    def before_fetch(self, run: Run) -> None:
        """Report the moment and continue: the signal arrives during the fetch or just after."""
        if self._is_due("fetch", run.step + 1):
            self._on_reached()
            self._reached = True

    def after_fetch(self, run: Run) -> None:
        """Wait for a signal that did not arrive during the fetch."""
        if self._reached:
            self._wait()

    def after(self, point: str, run: Run) -> None:
        """Record, then wait if this is the moment of the kill."""
        super().after(point, run)
        if run.task != "fit" or self._kill is None or point == "after_run":
            return
        if self._kill.kind == "save" and point == "before_step" and self._is_reached(run.step + 1):
            os.environ.setdefault(_KILL_AT_VARIABLE, self._kill.point)
        counted = point.startswith(("after_step", "before_val", "after_val"))
        if self._is_due(point, run.step if counted else run.step + 1):
            self._on_reached()
            self._wait()

    def _is_due(self, point: str, step: int) -> bool:
        return self._kill is not None and self._kill.point == point and self._is_reached(step)

    def _is_reached(self, step: int) -> bool:
        assert self._kill is not None
        position = self._kill.position
        return (self.fit, step) >= (position.fit, position.step)
