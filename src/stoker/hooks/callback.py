"""`Callback`: plain functions as a hook."""

from collections.abc import Callable
from typing import Any

from stoker.core.errors import did_you_mean
from stoker.core.foreign_words import point_of
from stoker.hooks.base.hook import POINTS, Hook, Priority
from stoker.run import Run


class Callback(Hook):
    """Call plain functions at points of the loop.

        Callback(after_step=lambda run: print(run.step))

    Args:
        name: The name of the hook, which must be unique in a run.
        priority: Lower runs earlier.
        points: A function of the run for each point, such as ``after_step=function``.
    """

    def __init__(
        self,
        *,
        name: str = "Callback",
        priority: int = Priority.NORMAL,
        **points: Callable[[Run], Any],
    ) -> None:
        self.name = name
        self.priority = priority
        for point, function in points.items():
            if point not in POINTS:
                other = point_of(point)
                near = f"; use {other}" if other else did_you_mean(point, POINTS)
                raise ValueError(
                    f"there is no point named {point!r}{near} (points: {', '.join(POINTS)})"
                )
            if not callable(function):
                raise TypeError(
                    f"{point} is a {type(function).__name__}, expected a function of the run"
                )
            setattr(self, point, function)
