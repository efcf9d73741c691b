"""`Periodic`: a hook that acts each so often, and at the end."""

import sys
from abc import abstractmethod
from typing import ClassVar

from stoker.core import dist
from stoker.core.every import Every
from stoker.core.requests import Request
from stoker.hooks.base.hook import Hook
from stoker.run import Run


class Periodic(Hook):
    """Calls `act` when ``every`` is due and once at the end of training, never twice at one step.

    ``every=None`` leaves only the end. A subclass that names a `request` also acts when someone has
    asked the run for it.
    """

    request: ClassVar[Request | None] = None

    def __init__(self, every: int | str | Every | None) -> None:
        self.every = None if every is None else Every.of(every)
        by_step = self.every is not None and self.every.unit == "st"
        self._steps = int(self.every.count) if by_step and self.every else sys.maxsize
        self._by_clock = self.every is not None and self.every.unit == "min"
        self._acted_at = -1
        self._acted_when = dist.now()

    def before_train(self, run: Run) -> None:
        """Minutes count from here."""
        self._acted_when = dist.now()

    @abstractmethod
    def act(self, run: Run) -> None:
        """Do it."""

    def act_once(self, run: Run) -> None:
        """Do it unless it was done at this step already."""
        if self._acted_at != run.step:
            self._acted_at, self._acted_when = run.step, dist.now()
            self.act(run)

    def after_step(self, run: Run) -> None:
        """Act when steps, minutes or a wish say so."""
        if run.step % self._steps == 0 or self._by_clock or run.requests.active:
            every, request = self.every, self.request
            asked = request is not None and run.requested(request)
            since = dist.now() - self._acted_when
            if asked or (every and (every.at_step(run.step) or every.at_seconds(since))):
                self.act_once(run)

    def after_val(self, run: Run) -> None:
        """Act when a wish says so: "save", for one, because a result is the best so far."""
        if self.request is not None and run.requested(self.request):
            self.act_once(run)

    def after_epoch(self, run: Run) -> None:
        """Act when epochs or a wish say so."""
        asked = self.request is not None and run.requested(self.request)
        if asked or (self.every is not None and self.every.at_epoch(run.epoch)):
            self.act_once(run)

    def after_train(self, run: Run) -> None:
        """Act at the end of a run that went well."""
        if run.error is None:
            self.act_once(run)
