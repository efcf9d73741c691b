"""When a training is killed: moments of four kinds, spread over its steps."""

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
"""The points of each kind; those of a save are the ones of `stoker.storage.crash_points`."""

_SAVE_OF_OTHERS = ("partial-made", "file-written:1", "file-synced:1", "file-synced:2")
"""What ranks from 1 on do of a save; rank 0 makes a checkpoint of their files."""

_KILL_AT = "STOKER_KILL_AT"


@dataclass(frozen=True)
class Kill:
    """A moment to be killed at: the first of its kind that comes from a step on."""

    place: Position
    kind: str
    point: str
    rank: int = 0

    def __str__(self) -> str:
        """In words."""
        what = {
            "step": f"in a step, at {self.point}",
            "eval": f"in a validation, at {self.point}",
            "data": "while a batch was fetched",
            "save": f"in a save, at {self.point}",
        }
        return what[self.kind]


def check_kinds(kinds: Sequence[str]) -> None:
    """Refuse what is no kind of moment.

    Raises:
        ValueError: naming it.
    """
    for kind in kinds:
        if kind not in KINDS:
            near = did_you_mean(kind, KINDS)
            raise ValueError(f"a run cannot be killed at {kind!r}{near} (it takes {KINDS})")
    if not kinds:
        raise ValueError(f"there is no moment to be killed at: give some of {KINDS}")


def plan(references: Sequence[Records], count: int, kinds: Sequence[str], seed: int) -> list[Kill]:
    """So many moments, spread over what the reference did; the same for the same seed.

    Args:
        references: what it did in each process.
        count: how many moments.
        kinds: of which kinds, by turns.
        seed: of what is drawn.
    """
    steps, evals = sorted(references[0].steps), sorted(references[0].evals)
    possible = [kind for kind in kinds if kind != "eval" or evals]
    if not steps or not possible:
        return []
    draw = random.Random(seed)
    kills = []
    for number in range(count):
        low, high = number * len(steps) // count, (number + 1) * len(steps) // count
        place = steps[draw.randrange(low, max(high, low + 1))]
        kind = possible[number % len(possible)]
        if kind == "eval":
            place = next((one for one in evals if one >= place), evals[-1])
        rank = draw.randrange(len(references)) if len(references) > 1 else 0
        point = draw.choice(_points(kind, rank, references[rank]))
        kills.append(Kill(place, kind, point, rank))
    return sorted(kills, key=lambda kill: kill.place)


def _points(kind: str, rank: int, reference: Records) -> Sequence[str]:
    """Those that a process comes to."""
    if kind == "save" and rank > 0:
        return _SAVE_OF_OTHERS
    return [p for p in _POINTS[kind] if p != "after_forward" or reference.has_losses]


class Doomed(Recorder):
    """Records, and at its moment says so and stands still until it is killed from outside.

    A save is the exception: the commit protocol ends its own process, with the same signal.

    Args:
        path: the file of its records.
        folder: below which the run must keep its checkpoints.
        kill: the moment, None for never.
        here: tells that it has come.
        wait: stands still.
    """

    def __init__(
        self,
        path: Path,
        folder: Path,
        kill: Kill | None,
        here: Callable[[], None],
        wait: Callable[[], None],
    ) -> None:
        super().__init__(path, folder)
        self._kill, self._here, self._wait = kill, here, wait
        self._has_told = False

    def fetches(self, run: Run) -> None:
        """Say so and go on: the signal comes while a batch is read, or just after."""
        if self._due("fetch", run.step + 1):
            self._here()
            self._has_told = True

    def fetched(self, run: Run) -> None:
        """It was read before the signal came."""
        if self._has_told:
            self._wait()

    def after(self, point: str, run: Run) -> None:
        """Record, then see whether this is the moment."""
        super().after(point, run)
        if run.task != "fit" or self._kill is None or point == "after_run":
            return
        if self._kill.kind == "save" and point == "before_step" and self._has_come(run.step + 1):
            os.environ.setdefault(_KILL_AT, self._kill.point)
        counted = point.startswith(("after_step", "before_val", "after_val"))
        if self._due(point, run.step if counted else run.step + 1):
            self._here()
            self._wait()

    def _due(self, point: str, step: int) -> bool:
        return self._kill is not None and self._kill.point == point and self._has_come(step)

    def _has_come(self, step: int) -> bool:
        assert self._kill is not None
        place = self._kill.place
        return (self.fit, step) >= (place.fit, place.step)
