"""`Position`: how far a pass over a loader has got, and what is needed to resume it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from stoker.core.user_state import Entries
from stoker.data.resume.rng import RngSnapshot


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a `ResumeStrategy` resumes a pass.

    Args:
        batches: the number of batches to skip.
        start: the random number generators at the start of the pass.
        generators: the state of each generator of the loader at this point.
        num_workers: the number of worker processes that produced the skipped batches.
        user_state: other state of the loader and its components at this point.
    """

    batches: int
    start: RngSnapshot
    generators: list[Tensor]
    num_workers: int
    user_state: Entries = field(default_factory=list)


@dataclass(slots=True)
class Position:
    """The state of the pass in progress.

    Args:
        batches: the number of batches handed out.
        padding: the number of padding batches handed out, where each rank has its own loader.
        drained: whether the loader has no further batches.
        ended: whether the last window was handed out.
        abandoned: whether the rest of the pass is discarded.
        start: the random number generators at the start of the pass; None before the first pass.
        resume_point: where the next pass resumes a restored one; None where it starts afresh.
    """

    batches: int = 0
    padding: int = 0
    drained: bool = False
    ended: bool = False
    abandoned: bool = False
    start: RngSnapshot | None = None
    resume_point: ResumePoint | None = None

    def copy(self) -> "Position":
        """Return a copy that later batches do not change."""
        return replace(self)

    def state_dict(self) -> dict[str, Any]:
        """Return a position within a pass as a tree of tensors, ints and strings."""
        assert self.start is not None
        return {
            "batches": self.batches,
            "padding": self.padding,
            "drained": int(self.drained),
            "abandoned": int(self.abandoned),
            "start": self.start.state_dict(),
        }

    @classmethod
    def from_state_dict(
        cls,
        state: Mapping[str, Any],
        generators: list[Tensor],
        num_workers: int,
        user_state: Entries,
    ) -> "Position":
        """Build a position whose pass is to be resumed.

        Args:
            state: what `state_dict` returned.
            generators: the saved state of each generator of the loader.
            num_workers: the saved number of worker processes of the loader.
            user_state: the other saved state of the loader.
        """
        start = RngSnapshot.from_state_dict(state["start"])
        return cls(
            batches=state["batches"],
            padding=state["padding"],
            drained=bool(state["drained"]),
            abandoned=bool(state["abandoned"]),
            start=start,
            resume_point=ResumePoint(state["batches"], start, generators, num_workers, user_state),
        )
