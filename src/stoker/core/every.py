"""`Every`: a period as a value."""

import re
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

Unit: TypeAlias = Literal["st", "ep", "min"]

_UNITS: dict[str, Unit] = {"st": "st", "ep": "ep", "min": "min"}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(st|ep|min)\s*")


@dataclass(frozen=True, slots=True)
class Every:
    """Each n steps, epochs or minutes, and at the end: as a value.

    Written as a string where one is asked for: ``"500st"``, ``"3ep"``, ``"10min"``; a plain
    number means steps. Due after completed multiples: ``"5ep"`` after epochs 5, 10, 15, …

    >>> Every.of("3ep").at_epoch(6)
    True
    """

    count: float
    unit: Unit = "st"

    def __post_init__(self) -> None:
        if self.count <= 0 or (self.unit != "min" and self.count != int(self.count)):
            kind = "a positive number" if self.unit == "min" else "a whole number from 1"
            raise ValueError(f"Every takes {kind}, got '{self.count:g}{self.unit}'")

    @classmethod
    def of(cls, value: "int | str | Every") -> Self:
        """Read a period as people write it: 500, "500st", "3ep" or "10min"."""
        if isinstance(value, cls):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(value)
        if isinstance(value, str) and (match := _WRITTEN.fullmatch(value)):
            return cls(float(match[1]), _UNITS[match[2]])
        raise ValueError(
            f"a period is written as steps '500st', epochs '3ep' or minutes '10min', got {value!r}"
        )

    def at_step(self, step: int) -> bool:
        """Whether it is due when ``step`` updates are finished."""
        return self.unit == "st" and step > 0 and step % self.count == 0

    def at_epoch(self, epoch: int) -> bool:
        """Whether it is due when ``epoch`` epochs are finished."""
        return self.unit == "ep" and epoch > 0 and epoch % self.count == 0

    def at_seconds(self, seconds: float) -> bool:
        """Whether it is due when the last time was ``seconds`` ago."""
        return self.unit == "min" and seconds >= self.count * 60

    def __str__(self) -> str:
        return f"{self.count:g}{self.unit}"
