"""`Every`: a period as a value."""

import re
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

Unit: TypeAlias = Literal["st", "ep", "min"]

_UNITS: dict[str, Unit] = {"st": "st", "ep": "ep", "min": "min"}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(st|ep|min)\s*")


@dataclass(frozen=True, slots=True)
class Every:
    """A period of n steps, epochs or minutes.

    Arguments named ``every`` also accept a string, ``"500st"``, ``"3ep"`` or ``"10min"``, or a
    number of steps. A period is due after completed multiples: ``"5ep"`` after epochs 5, 10, 15, …

    >>> Every.of("3ep").at_epoch(6)
    True
    """

    count: float
    unit: Unit = "st"

    def __post_init__(self) -> None:
        if self.count <= 0 or (self.unit != "min" and self.count != int(self.count)):
            kind = "a positive number" if self.unit == "min" else "a positive integer"
            raise ValueError(f"Every takes {kind}, got '{self.count:g}{self.unit}'")

    @classmethod
    def of(cls, value: "int | str | Every") -> Self:
        """Parse a period: 500, "500st", "3ep" or "10min"."""
        if isinstance(value, cls):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(value)
        if isinstance(value, str) and (match := _WRITTEN.fullmatch(value)):
            return cls(float(match[1]), _UNITS[match[2]])
        raise ValueError(
            f"expected a period such as '500st' (steps), '3ep' (epochs) or '10min', got {value!r}"
        )

    def at_step(self, step: int) -> bool:
        """Return whether the period is due after ``step`` updates."""
        return self.unit == "st" and step > 0 and step % self.count == 0

    def at_epoch(self, epoch: int) -> bool:
        """Return whether the period is due after ``epoch`` epochs."""
        return self.unit == "ep" and epoch > 0 and epoch % self.count == 0

    def at_seconds(self, seconds: float) -> bool:
        """Return whether the period is due ``seconds`` after the last time."""
        return self.unit == "min" and seconds >= self.count * 60

    def __str__(self) -> str:
        return f"{self.count:g}{self.unit}"
