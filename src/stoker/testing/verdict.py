"""`Verdict`: what a proof has found, on one page."""

from dataclasses import dataclass, field

from stoker.testing.compare import Difference


@dataclass(frozen=True)
class KillMade:
    """A kill that has happened.

    Args:
        where: the moment, in words, and of several processes the one that was killed.
        step: the last step that was finished then.
        came_from: the step that the next attempt went on from; None if it is not known.
    """

    where: str
    step: int
    came_from: int | None = None


@dataclass(frozen=True)
class Verdict:
    """Whether a training that was killed again and again ended at the same bits.

    Args:
        steps: how many updates the reference made.
        kills: those that were made.
        asked: how many were asked for.
        compared: how many values of each kind were compared.
        difference: the first one, None if there is none.
        notes: what else is worth knowing.
        seconds: what the reference took.
        processes: how many trained together.
    """

    steps: int
    kills: list[KillMade]
    asked: int
    compared: dict[str, int] = field(default_factory=dict)
    difference: Difference | None = None
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    processes: int = 1

    @property
    def same(self) -> bool:
        """Whether it resumes exactly."""
        return self.difference is None

    def text(self) -> str:
        """One page, for people."""
        times = "once" if len(self.kills) == 1 else f"{len(self.kills)} times"
        together = f" in {self.processes} processes" if self.processes > 1 else ""
        head = f"{self.steps} steps{together}, killed {times}: "
        lines = [head + ("the same bits" if self.same else "NOT the same bits"), ""]
        if self.difference is not None:
            lines += [*self._parting(self.difference), ""]
        lines.append("killed")
        for number, kill in enumerate(self.kills, 1):
            went_on = "" if kill.came_from is None else f", went on from step {kill.came_from}"
            lines.append(f"  {number}  after step {kill.step:<5} {kill.where}{went_on}")
        lines += ["", "compared after every step and at the end"]
        lines += [f"  {count:>9,}  {name}" for name, count in self.compared.items()]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _parting(self, found: Difference) -> list[str]:
        lines = [f"first difference: {found}"]
        if found.attempt == 0:
            lines.append(
                "  It was there before the first kill: the training is not the same twice, "
                "killed or not."
            )
        elif found.attempt is not None:
            lines.append(f"  It came in attempt {found.attempt + 1}.")
        if found.suspects:
            lines.append("  Also not as in the reference, and perhaps the cause:")
            lines += [f"    {suspect}" for suspect in found.suspects[:6]]
            lines.append("  What decides how a training goes on belongs into a state_dict.")
        return lines
