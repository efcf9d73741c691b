"""`Periodic`: a hook that acts at a fixed period, and at the end."""

import sys
from abc import abstractmethod
from typing import ClassVar

from stoker.core import dist
from stoker.core.every import Every
from stoker.core.run_requests import Request
from stoker.hooks.base.hook import Hook
from stoker.run import Run


class Periodic(Hook):
    """Calls `act` when ``every`` is due and once at the end of training, never twice at one step.

    ``every=None`` means only at the end. A subclass that names a `request` also acts when it is
    made.
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
        """Start counting minutes."""
        self._acted_when = dist.now()

    @abstractmethod
    def act(self, run: Run) -> None:
        """Act; subclasses implement it."""

    def act_once(self, run: Run) -> None:
        """Act, unless that was done at this step already."""
        if self._acted_at != run.step:
            self._acted_at, self._acted_when = run.step, dist.now()
            self.act(run)

    def after_step(self, run: Run) -> None:
        """Act if due by steps, by minutes or on request."""
        if run.step % self._steps == 0 and run.step:
            self.act_once(run)
        elif self._by_clock or run.requests.active:
            every, request = self.every, self.request
            requested = request is not None and run.requested(request)
            if requested or (every and every.at_seconds(dist.now() - self._acted_when)):
                self.act_once(run)

    def after_val(self, run: Run) -> None:
        """Act on request: "save", for example, because a result is the best so far."""
        if self.request is not None and run.requested(self.request):
            self.act_once(run)

    def after_epoch(self, run: Run) -> None:
        """Act if due by epochs or on request."""
        requested = self.request is not None and run.requested(self.request)
        if requested or (self.every is not None and self.every.at_epoch(run.epoch)):
            self.act_once(run)

    def after_train(self, run: Run) -> None:
        """Act at the end of a run that did not fail."""
        if run.error is None:
            self.act_once(run)
