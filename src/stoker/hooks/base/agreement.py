"""`Agreement`: what one process of a job wants, all of them do, at the same step."""

from collections.abc import Sequence
from time import monotonic
from typing import get_args

from stoker.core import dist
from stoker.core.errors import Preempted
from stoker.core.requests import Request, Signal
from stoker.hooks.base.hook import Hook
from stoker.hooks.base.periodic import Periodic
from stoker.run import Run

_SECONDS = 0.5
_WISHES: tuple[Request, ...] = get_args(Request)
_STEP_POINTS = ("before_step", "after_forward", "before_update", "after_step")


class Agreement(Hook):
    """Lets the processes of a job agree on what hooks and signals ask of the run.

    They meet after every validation and epoch, and between steps about twice a second: at a step
    that they agreed on the last time. Signals and clocks wait that long. Where a hook might ask
    for something at any step, in one process only, they meet after every step. In a validation
    that a signal may end they meet as often, for that alone.

    Args:
        others: the hooks whose wishes it serves.
    """

    priority = 1000
    same_on_all_ranks = True

    def __init__(self, others: Sequence[Hook]) -> None:
        asking = [hook for hook in others if not hook.same_on_all_ranks]
        self._each_step = any(_acts_at(hook, point) for hook in asking for point in _STEP_POINTS)
        self._skips = any(_acts_at(hook, "before_update") for hook in asking)
        self._periodic = [hook for hook in others if isinstance(hook, Periodic) and hook.request]
        self._steps, self._looks = _Appointments(), _Appointments()
        self._looked = 0

    def before_run(self, run: Run) -> None:
        """From here on, what is asked for waits until all know of it."""
        run.requests.distributed = True
        self._meet(run)

    def before_update(self, run: Run) -> None:
        """An update that one process leaves out is left out by all."""
        if self._skips and dist.any_rank(run.skip_reason is not None) and not run.skip_reason:
            run.skip_update("another process leaves the update out")

    def after_step(self, run: Run) -> None:
        """Meet, if it was agreed so."""
        if self._each_step or run.step >= self._steps.next:
            self._meet(run)

    def after_val_step(self, run: Run) -> None:
        """Leave a validation that is too long to be waited for, if one process is asked to."""
        if not run.requests.may_leave:
            return
        self._looked += 1
        if self._looked >= self._looks.next:
            signal, time = dist.all_reduce_max(run.requests.local_signal, _clock())
            self._looks.plan(self._looked, time)
            if signal == Signal.LEAVE:
                raise Preempted

    def after_val(self, run: Run) -> None:
        """Meet: results may have led to a decision."""
        self._meet(run)

    def after_train_epoch(self, run: Run) -> None:
        """Meet: a validation may have been asked for."""
        self._meet(run)

    def after_epoch(self, run: Run) -> None:
        """Meet: results may have led to a decision."""
        self._meet(run)

    def after_run(self, run: Run) -> None:
        """Each process goes its own way, with a clock of its own."""
        run.requests.distributed = False
        dist.set_now(None)

    def _meet(self, run: Run) -> None:
        requests = run.requests
        wanted = [float(request in requests.local) for request in _WISHES]
        stops = float(requests.local_stop is not None)
        stops, signal, time, *wanted = dist.all_reduce_max(
            stops, requests.local_signal, _clock(), *wanted
        )
        dist.set_now(time)
        self._steps.plan(run.step, time)
        if stops:
            reasons = dist.all_gather_object(requests.local_stop)
            reason = next(reason for reason in reasons if reason is not None)
            requests.confirm_stop(reason, Signal(int(signal)))
        active = {request for request, want in zip(_WISHES, wanted, strict=True) if want}
        requests.local.clear()
        requests.active |= active
        for hook in self._periodic:
            if hook.request in active:
                hook.act_once(run)


class _Appointments:
    """When to meet: about twice a second, at a step that is known to all since the last time."""

    def __init__(self) -> None:
        self.next = 0
        self._last = (0, 0.0)

    def plan(self, step: int, time: float) -> None:
        """Choose the step of the next meeting by the pace since the last one."""
        steps, seconds = step - self._last[0], time - self._last[1]
        pace = seconds / steps if steps > 0 else _SECONDS
        self.next = step + min(1000, max(1, int(_SECONDS / max(pace, 1e-6))))
        self._last = (step, time)


def _clock() -> float:
    """The time of rank 0, which is the largest then."""
    return monotonic() if dist.is_main() else float("-inf")


def agreeing(hooks: Sequence[Hook]) -> list[Hook]:
    """The hooks, and among several processes one more that lets them agree."""
    return [*hooks, Agreement(hooks)] if dist.world_size() > 1 else list(hooks)


def _acts_at(hook: Hook, point: str) -> bool:
    return point in vars(hook) or getattr(type(hook), point) is not getattr(Hook, point)
