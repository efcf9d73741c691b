"""`Verdict`: the result of a proof."""

from dataclasses import dataclass, field

from stoker.testing.compare import Difference


@dataclass(frozen=True)
class KillRecord:
    """A kill that was carried out.

    Attributes:
        where: A description of the moment, with the rank if there are several processes.
        step: The last step that was finished before the kill.
        resumed_from: The step that the next attempt resumed from, or None if it is unknown.
    """

    where: str
    step: int
    resumed_from: int | None = None


@dataclass(frozen=True)
class Verdict:
    """Whether a training that was killed repeatedly ended at the same bits.

    Attributes:
        steps: The number of steps of the reference run.
        kills: The kills that were carried out.
        requested: The number of kills that were requested.
        compared: How many values of each kind were compared.
        difference: The first difference, or None if there is none.
        notes: Additional remarks.
        seconds: The duration of the reference run.
        processes: The number of processes that trained together.
        elastic: Whether single processes were lost and added while the others continued.
    """

    steps: int
    kills: list[KillRecord]
    requested: int
    compared: dict[str, int] = field(default_factory=dict)
    difference: Difference | None = None
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    processes: int = 1
    elastic: bool = False

    @property
    def same(self) -> bool:
        """Whether the training resumes exactly."""
        return self.difference is None

    def text(self) -> str:
        """Return a readable report of one page."""
        times = "once" if len(self.kills) == 1 else f"{len(self.kills)} times"
        together = f" in {self.processes} processes" if self.processes > 1 else ""
        what = "which were lost or added" if self.elastic else "killed"
        head = f"{self.steps} steps{together}, {what} {times}: "
        lines = [head + ("the same bits" if self.same else "NOT the same bits"), ""]
        if self.difference is not None:
            lines += [*self._explain(self.difference), ""]
        lines.append("events" if self.elastic else "kills")
        for number, kill in enumerate(self.kills, 1):
            resumed = (
                "" if kill.resumed_from is None else f", resumed from step {kill.resumed_from}"
            )
            lines.append(f"  {number}  after step {kill.step:<5} {kill.where}{resumed}")
        lines += ["", "values compared, after every step and at the end"]
        lines += [f"  {count:>9,}  {name}" for name, count in self.compared.items()]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _explain(self, difference: Difference) -> list[str]:
        lines = [f"first difference: {difference}"]
        if difference.attempt == 0:
            lines.append(
                "  It appeared before the first kill: the training is not deterministic, even "
                "without kills."
            )
        elif difference.attempt is not None:
            lines.append(f"  It appeared in attempt {difference.attempt + 1}.")
        if difference.suspects:
            lines.append("  These values are not saved and differ too, so one may be the cause:")
            lines += [f"    {suspect}" for suspect in difference.suspects[:6]]
            lines.append("  Add every value that affects training to a state_dict.")
        return lines
