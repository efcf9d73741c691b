"""The state of a run for a process that joins it, and what an elastic run rejects."""

from io import BytesIO

import torch

from stoker.checkpoint import Loaded
from stoker.core import dist
from stoker.core.every import Every
from stoker.data import BatchFeeder
from stoker.hooks.base.dispatch import HookList
from stoker.hooks.base.periodic import Periodic
from stoker.hooks.checkpoint import Checkpoint
from stoker.resume.run_state import Restored, RunState, Stage
from stoker.run import Run
from stoker.storage import url_of


def check_elastic(run: Run, hooks: HookList) -> None:
    """Reject what an elastic run cannot keep the same on all its processes."""
    if run.engine.parallel_model.logical_ranks is None:
        raise ValueError(
            f"elastic needs a layout with logical_ranks, but the layout is {run.engine.layout}: "
            "set run.parallel.logical_ranks, or Layout(replicate=-1, logical_ranks=…)"
        )
    if run.dir is not None and url_of(run.dir) is not None:
        raise ValueError(
            "elastic cannot be combined with a run_dir in an object store: use a local folder"
        )
    for hook in hooks:
        if isinstance(hook, Periodic):
            check_period(f"hook {hook.name!r}", hook.every)
        if isinstance(hook, Checkpoint) and hook.is_auto:
            raise ValueError(_by_clock(f"hook {hook.name!r}", "auto"))


def check_period(what: str, every: Every | None) -> None:
    """Reject minutes in an elastic run."""
    if dist.members() is not None and every is not None and every.unit == "min":
        raise ValueError(_by_clock(what, str(every)))


def _by_clock(what: str, period: str) -> str:
    return (
        f"{what} acts by the clock ({period!r}), but a process that joins an elastic run has not "
        "seen the time before: count steps or epochs, such as '500st' or '1ep'"
    )


def send_state(state: RunState, feeder: BatchFeeder, stage: Stage, validated_at: int) -> bytes:
    """Return the complete state of a run between two steps; call it on rank 0."""
    buffer = BytesIO()
    parts = {
        "shared": state.shared(stage, validated_at, None) | {"history": [*state.history]},
        "own": state.own(feeder),
        "info": state.info(validated_at),
        "now": dist.now(),
    }
    torch.save(parts, buffer)
    return buffer.getvalue()


def receive_state(received: bytes, state: RunState, feeder: BatchFeeder) -> Restored:
    """Restore what `send_state` of another process has returned."""
    parts = torch.load(BytesIO(received), weights_only=False)  # from a process of the same job
    dist.set_now(parts["now"])
    step = parts["shared"]["run"]["step"]
    return state.restore(Loaded(step, parts["shared"], parts["own"], parts["info"], 1), feeder)
