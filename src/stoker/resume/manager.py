"""`CheckpointManager`: decides when a run is saved, and restores it."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from stoker.core import dist
from stoker.core.errors import CheckpointError
from stoker.core.log import get_logger
from stoker.data import BatchFeeder
from stoker.hooks.base.dispatch import HookList
from stoker.hooks.checkpoint import Checkpoint
from stoker.resume.capture import Resumed, RunState, Stage
from stoker.resume.lookup import find_checkpoint, is_beyond, load_checkpoint
from stoker.resume.signals import Interrupts, StopWaiting
from stoker.rundir.folder import origin_of

_log = get_logger()


class ValidationRecord(NamedTuple):
    """A validation: the step it was made at, when it ended, and the seconds it took."""

    step: int
    when: float
    took: float


class CheckpointManager:
    """Saves a fit between its steps, and takes it up again.

        take_up        before hooks begin: counters, model, optimizer, hooks, the place in the data
        begin          hooks have begun: their state once more, random numbers; or the first save
          go_on        the same for a run that goes on in the middle of an epoch
          windows      none, if the epoch has only its end left
            before_val     a save, if validations are too long to be waited for
            after_step     a save that is due
          leaving      the run leaves the epoch early: saved before the epoch's end is seen by hooks
          after_epoch  a save that is due, and the last one

    Without a `Checkpoint` hook nothing is saved; signals are minded all the same.

    Args:
        state: takes the run down and puts it back.
        hooks: those that take part; one of them may be a `Checkpoint`.
        last_look: tells of the last validation.
        grace: seconds to save and leave in when a signal says so.
    """

    def __init__(
        self,
        state: RunState,
        hooks: HookList,
        last_validation: Callable[[], ValidationRecord],
        grace: float,
    ) -> None:
        self._state = state
        self._run = state.run
        self._last_validation = last_validation
        found = [hook for hook in hooks if isinstance(hook, Checkpoint)]
        if len(found) > 1:
            names = ", ".join(repr(hook.name) for hook in found)
            raise ValueError(f"a run has one Checkpoint hook, got {len(found)}: {names}")
        self._hook = found[0] if found else None
        if self._hook is not None and self._hook.open(self._run) is None:
            self._hook = None
        self.interrupts = Interrupts(self._run.requests, grace)
        self.resumed: Resumed | None = None
        self.later: Path | None = None
        self._came_from: str | None = None
        self._left_early = False

    def take_up(self, feeder: BatchFeeder, resume: str | Path, loaded: Path | None = None) -> None:
        """Put back the newest checkpoint, or the one that was named or loaded, if there is one."""
        run = self._run
        if run.step and loaded is None and origin_of(resume) is None:
            self._go_on_here(feeder, resume)
            return
        checkpoints = self._hook.checkpoints if self._hook else None
        if resume == "never" and checkpoints is not None and checkpoints.list():
            raise CheckpointError(
                f"resume='never', but '{checkpoints.folder}' holds the checkpoints of another run: "
                "choose another folder"
            )
        self._came_from = origin_of(resume)
        path = loaded or find_checkpoint(resume, checkpoints)
        if path is None:
            return
        saved = load_checkpoint(path, run.engine)
        if self._came_from is None:
            self._came_from = saved.info.get("came_from")
        if is_beyond(saved, run.max_epochs, run.max_steps):
            self.later = path  # a fit before the one that was killed
            run.requests.confirm_stop("an earlier attempt has got further than this fit")
            return
        self.resumed = self._state.restore(saved, feeder)
        _log.info(f"going on from {path}: {run.where()}")

    def _go_on_here(self, feeder: BatchFeeder, resume: str | Path) -> None:
        """This trainer has trained: it goes on from where it is, also within an epoch."""
        if resume == "never":
            raise ValueError("resume='never', but this trainer has trained: make a new one")
        before = self._run.feeder
        if before is not None and before.loader is feeder.loader:
            feeder.load_state_dict(before.state_dict())

    @property
    def has_nothing_to_do(self) -> bool:
        """Whether no step is left, and no end of an epoch either."""
        return self._run.done and not (self.resumed is not None and self.resumed.within_epoch)

    @property
    def goes_on(self) -> bool:
        """Whether there is an epoch to make: a new one, or the rest of one."""
        return self.resumed is not None or not self._run.done

    def begin(self, feeder: BatchFeeder) -> None:
        """Training begins: from the state that was put back, or with a first save."""
        if self.resumed is not None and not self.resumed.within_epoch:
            self._finish_resume()
        elif self.resumed is None and self._run.step == 0:
            self._save(feeder, "between", wait=True)  # from here on there is one to go on from

    def go_on(self) -> bool:
        """An epoch has begun for hooks, which the run may be in the middle of.

        Returns:
            Whether the validation of the last step was cut short, and is to be made now.
        """
        self._left_early = False
        owed = self.resumed is not None and self.resumed.owes_validation
        if self.resumed is not None:
            self._finish_resume()
        return owed

    def windows(self, feeder: BatchFeeder) -> Iterable[list[Any]]:
        """The windows of the epoch, until a signal comes while one is waited for."""
        if self._run.done or self._run.requested("end_epoch"):
            return ()
        by_workers = getattr(feeder.loader, "num_workers", 0) > 0
        may_leave = (
            by_workers and not self._run.requests.distributed
        )  # the others wait for this one
        return self._until_stopped(feeder) if may_leave else feeder

    def _until_stopped(self, feeder: BatchFeeder) -> Iterator[list[Any]]:
        """The same windows; a signal that comes while workers are waited for ends them.

        Not with the first one, when a pass begins and draws its order.
        """
        windows, interrupts, begun = iter(feeder), self.interrupts, False
        while True:
            position = feeder.position.copy()
            try:
                interrupts.waiting = begun and not interrupts.asked
                window = next(windows, None)
                interrupts.waiting = False
            except StopWaiting:
                feeder.rewind(position)  # a batch that arrived meanwhile makes no step
                return
            except BaseException:
                interrupts.waiting = False
                raise
            if window is None:
                return
            begun = True
            yield window

    def before_val(self, feeder: BatchFeeder) -> None:
        """A validation begins. If the last was long, save now, so that a signal can end it."""
        if self._looks_long():
            self._save(feeder, "within", owes_validation=True)
            self._run.requests.may_leave = True

    def _looks_long(self) -> bool:
        """Whether the last validation took longer than a signal leaves time for."""
        took = dist.all_reduce_max(self._last_validation().took)[0]
        return self._hook is not None and took > self.interrupts.grace / 2

    def after_step(self, feeder: BatchFeeder) -> None:
        """Save if it is due; after the last step of an epoch later, when its end is over."""
        self._run.requests.may_leave = False
        hook, run = self._hook, self._run
        if hook is None or not (hook.due or (run.requests.active and hook.wanted(run))):
            return
        if not feeder.exhausted and not self._run.requested("end_epoch"):
            self._save(feeder, "within")
        else:
            hook.due = True

    def leaving(self, feeder: BatchFeeder) -> None:
        """Save a run that leaves its epoch early, as if it went on; or before a long validation."""
        self._left_early = self._run.done
        if self._left_early or self._looks_long():
            self._save(feeder, "within")
            self._run.requests.may_leave = not self._left_early

    def after_epoch(self, feeder: BatchFeeder) -> None:
        """Save if it is due, and at the end; an epoch cut short by a signal is saved already."""
        self._run.requests.may_leave = False
        cut_short = self._left_early and self._run.requests.signal
        due = self._hook is not None and self._hook.wanted(self._run)
        if (due or self._run.done) and not cut_short:
            self._save(feeder, "between")

    def _save(
        self,
        feeder: BatchFeeder,
        stage: Stage,
        *,
        wait: bool = False,
        owes_validation: bool = False,
    ) -> None:
        if self._hook is None:
            return
        ended = None if self._run.requests.signal else self._run.stop_reason
        validated_at = self._last_validation().step
        origin = {"came_from": self._came_from} if self._came_from is not None else {}

        def take() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
            state = self._state
            return (
                state.shared(stage, validated_at, ended, owes_validation=owes_validation),
                state.own(feeder),
                state.info(validated_at) | origin,
            )

        self._hook.save(self._run.step, take, wait=wait)

    def _finish_resume(self) -> None:
        assert self.resumed is not None
        self.resumed.go_on()
        self.resumed = None
