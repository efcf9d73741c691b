"""`Agreement`: what one rank requests, all ranks do, at the same step."""

from collections.abc import Sequence
from time import monotonic
from typing import get_args

from stoker.core import dist
from stoker.core.errors import Preempted
from stoker.core.log import get_logger
from stoker.core.run_requests import Request, Signal
from stoker.hooks.base.hook import Hook, overrides
from stoker.hooks.base.periodic import Periodic
from stoker.hooks.heartbeat import Heartbeat
from stoker.run import Run

_log = get_logger()

_SECONDS = 0.5
_REQUESTS: tuple[Request, ...] = get_args(Request)
_STEP_POINTS = ("before_step", "after_forward", "before_update", "after_step")


class Agreement(Hook):
    """Makes the ranks of a job agree on what hooks and signals request of the run.

    The ranks synchronize after every validation and epoch, and between steps about twice a second,
    at a step they agreed on the last time. Signals and clocks wait that long. If a hook might make
    a request at any step on one rank only, they synchronize after every step, since a request takes
    effect after the current step. During a validation that a signal may end, they synchronize as
    often for that alone.

    Args:
        others: the hooks whose requests it serves.
    """

    observes = True
    priority = 1000
    same_on_all_ranks = True

    def __init__(self, others: Sequence[Hook]) -> None:
        self._each_step = [
            hook
            for hook in others
            if not hook.same_on_all_ranks and any(overrides(hook, point) for point in _STEP_POINTS)
        ]
        self._skips = any(overrides(hook, "before_update") for hook in self._each_step)
        self._periodic = [hook for hook in others if isinstance(hook, Periodic) and hook.request]
        self._step_timer, self._val_timer = _SyncTimer(), _SyncTimer()
        self._val_steps = 0

    def attach(self, run: Run) -> None:
        """Log which hooks cost a collective per step, and how to avoid it."""
        if self._each_step:
            names = ", ".join(repr(hook.name) for hook in self._each_step)
            _log.hint(
                f"hooks {names} act at every step, so the ranks synchronize after each; set "
                "same_on_all_ranks = True on those that do the same on all of them"
            )

    def before_run(self, run: Run) -> None:
        """Make requests wait until all ranks know of them."""
        run.requests.distributed = True
        if (members := dist.members()) is not None:
            members.on_join = [self._restart]  # a process that joins has not seen earlier steps
        self._synchronize(run)

    def before_update(self, run: Run) -> None:
        """Skip an update on all ranks if one rank skips it."""
        if self._skips and dist.any_rank(run.skip_reason is not None) and not run.skip_reason:
            run.skip_update("another rank skips the update")

    def after_step(self, run: Run) -> None:
        """Synchronize if it is time."""
        if self._each_step or run.step >= self._step_timer.next:
            self._synchronize(run)

    def after_val_step(self, run: Run) -> None:
        """Leave a validation that is too long to wait for, if one rank is preempted."""
        if not run.requests.may_exit:
            return
        self._val_steps += 1
        if self._val_steps >= self._val_timer.next:
            signal, time = dist.all_reduce_max(run.requests.local_signal, _clock())
            self._val_timer.plan(self._val_steps, time)
            if signal == Signal.PREEMPT:
                raise Preempted

    def after_val(self, run: Run) -> None:
        """Synchronize: results may have led to a request."""
        self._synchronize(run)

    def after_train_epoch(self, run: Run) -> None:
        """Synchronize: a validation may have been requested."""
        self._synchronize(run)

    def after_epoch(self, run: Run) -> None:
        """Synchronize: results may have led to a request."""
        self._synchronize(run)

    def after_run(self, run: Run) -> None:
        """Release the ranks, each with its own clock."""
        run.requests.distributed = False
        dist.set_now(None)

    def _restart(self) -> None:
        self._step_timer, self._val_timer, self._val_steps = _SyncTimer(), _SyncTimer(), 0

    def _synchronize(self, run: Run) -> None:
        requests, members = run.requests, dist.members()
        wanted = [float(request in requests.local) for request in _REQUESTS]
        stops = float(requests.local_stop is not None)
        requested = 0.0 if members is None else float(members.waiting_to_join())
        stops, signal, time, requested, *wanted = dist.all_reduce_max(
            stops, requests.local_signal, _clock(), requested, *wanted
        )
        if members is not None:
            members.requested = max(members.requested, int(requested))
        dist.set_now(time)
        self._step_timer.plan(run.step, time)
        if stops:
            reasons = dist.all_gather_object(requests.local_stop)
            reason = next(reason for reason in reasons if reason is not None)
            requests.confirm_stop(reason, Signal(int(signal)))
        active = {request for request, want in zip(_REQUESTS, wanted, strict=True) if want}
        requests.local.clear()
        requests.active |= active
        for hook in self._periodic:
            if hook.request in active:
                hook.act_once(run)


class _SyncTimer:
    """When to synchronize: about twice a second, at a step known to all ranks since the last."""

    def __init__(self) -> None:
        self.next = 0
        self._last = (0, 0.0)

    def plan(self, step: int, time: float) -> None:
        """Choose the step of the next synchronization by the pace since the last one."""
        steps, seconds = step - self._last[0], time - self._last[1]
        pace = seconds / steps if steps > 0 else _SECONDS
        self.next = step + min(1000, max(1, int(_SECONDS / max(pace, 1e-6))))
        self._last = (step, time)


def _clock() -> float:
    """Return the time of rank 0, which is then the maximum over all ranks."""
    return monotonic() if dist.is_main() else float("-inf")


def with_agreement(hooks: Sequence[Hook]) -> list[Hook]:
    """Return the hooks, and in a job of several ranks a `Heartbeat` and an `Agreement`."""
    if dist.world_size() == 1 and dist.members() is None:
        return list(hooks)
    watched = any(isinstance(hook, Heartbeat) for hook in hooks)
    return [*hooks, *([] if watched else [Heartbeat()]), Agreement(hooks)]
