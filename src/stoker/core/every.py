"""`Every`: a period as a value."""

import math
import re
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

Unit: TypeAlias = Literal["st", "ep", "min"]

_UNITS: dict[str, Unit] = {"st": "st", "ep": "ep", "min": "min"}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(st|ep|min)\s*")
_ALMOST = re.compile(
    r"(?:every|each|per)?\s*(\d*)[\s_-]*(epochs?|ep|e|steps?|st|s|iter(?:ation)?s?|it|batch(?:es)?|ba"
    r"|minutes?|mins?|m|hours?|hr|h)"
)
_SHORT: dict[str, Unit] = {"e": "ep", "s": "st", "i": "st", "b": "st", "m": "min", "h": "min"}


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
        if self.unit not in _UNITS:
            raise ValueError(f"the unit of Every must be 'st', 'ep' or 'min', got {self.unit!r}")
        if isinstance(self.count, bool) or not isinstance(self.count, int | float):
            raise ValueError(
                f"Every takes a number and a unit, got {self.count!r}: parse a text with "
                f"Every.of({self.count!r})"
            )
        valid = self.unit == "min" or float(self.count).is_integer()
        if not (0 < self.count < math.inf and valid):
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
            "expected a period such as '500st' (steps), '3ep' (epochs) or '10min', got "
            f"{value!r}{_near(value)}"
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


def _near(value: object) -> str:
    """Return the period that was probably meant, as the end of an error message."""
    match = _ALMOST.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if match is None or match[1].strip("0") == "" != match[1]:
        return ""
    count = int(match[1] or 1) * (60 if match[2][0] == "h" else 1)
    return f"; did you mean '{count}{_SHORT[match[2][0]]}'?"
