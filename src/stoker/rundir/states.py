"""`State`: whether a run trains, or how it ended. Board, report and commands show these words."""

from typing import Literal, NamedTuple, TypeAlias

State: TypeAlias = Literal["running", "finished", "stopped", "preempted", "failed", "dead"]
"""
running     its process is alive, or it has written something recently
finished    it reached its last epoch or step
stopped     it ended before that, by a hook, by the caller or by Ctrl-C
preempted   SIGTERM or SIGUSR1 ended it
failed      an error ended it
dead        its process is gone without an end in log or ledger
"""

_INTERRUPTED = "interrupted by Ctrl-C"


class Ending(NamedTuple):
    """How a run ended, and why; the reason of a run that reached its limit is empty."""

    state: State
    why: str

    @property
    def interrupted(self) -> bool:
        """Whether somebody pressed Ctrl-C."""
        return self.state == "stopped" and self.why.startswith(_INTERRUPTED)


def ending_of(stop_reason: str | None, error: BaseException | None = None) -> Ending:
    """Return how a run ended, from the reason it was stopped for or the error that ended it.

    An Optuna trial that is pruned by an exception has not failed, and neither has Ctrl-C.
    """
    if isinstance(error, KeyboardInterrupt):
        return Ending("stopped", stop_reason or _INTERRUPTED)
    if error is not None:
        text = str(error).partition("\n")[0][:200]
        if type(error).__name__ == "TrialPruned":
            return Ending("stopped", f"pruned: {text}" if text else "pruned")
        return Ending("failed", f"{type(error).__name__}: {text}")
    if stop_reason is None:
        return Ending("finished", "")
    state: State = "preempted" if stop_reason.startswith("preempted") else "stopped"
    return Ending(state, stop_reason)
