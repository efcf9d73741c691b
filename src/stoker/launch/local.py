"""The processes of a job on this machine, under torch's elastic agent."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from uuid import uuid4

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from stoker.core.errors import Preempted, RankFailed
from stoker.launch.processes import End, Processes
from stoker.launch.rank import FORWARDED, packed

_HERE = "127.0.0.1"
_SETTLE = 0.3  # seconds in which the processes that fail for want of a dead one do so, too
_REFUSED = 2  # the exit code of bad input, which does not get better


def run_here(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    nproc: int,
    max_restarts: int,
    dead_after: float,
    grace: float,
) -> Any:
    """Run the function in ``nproc`` processes of this machine; what rank 0 returned."""
    agent = Agent(packed(fn, args), nproc, max_restarts, dead_after=dead_after, grace=grace)
    with _listening(agent.on_signal):
        try:
            agent.run()
        finally:
            agent.leave()
    if agent.failure is not None:
        raise RankFailed(agent.verdict, agent.failure.exit_code)
    asked = agent.processes.first_failure()
    if asked is not None and asked.exit_code == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if asked is not None or not agent.processes.all_ended:
        raise Preempted
    report = agent.processes.ends[0].report
    return report.value if report is not None else None


class Agent(SimpleElasticAgent):
    """Torch's agent finds the ranks a place to meet and starts them again; this is what is ours.

    How processes are started, how the first failure is told from those that follow, and how all
    are ended in bounded time.

    Args:
        job: what each process runs, see `stoker.launch.rank.packed`.
        nproc: how many.
        max_restarts: how often a job that failed is started again.
        dead_after: seconds in which the job has ended after the death of a process. For half of it
            the others may leave by themselves.
        grace: seconds that the processes have to save and leave in when they are asked to.
    """

    def __init__(
        self, job: bytes, nproc: int, max_restarts: int, *, dead_after: float, grace: float
    ) -> None:
        place = RendezvousParameters(
            backend="c10d",
            endpoint=f"{_HERE}:0",
            run_id=uuid4().hex,
            min_nodes=1,
            max_nodes=1,
            local_addr=_HERE,
        )
        super().__init__(
            WorkerSpec(
                role="rank",
                local_world_size=nproc,
                entrypoint="stoker",
                rdzv_handler=get_rendezvous_handler(place),
                max_restarts=max_restarts,
                local_addr=_HERE,
            )
        )
        self._job, self._dead_after, self._grace = job, dead_after, grace
        self._deadline = float("inf")
        self._interrupted = False
        self.processes = Processes(job, [])
        self.failure: End | None = None
        self.verdict = ""
        """What there is to say of it."""

    # What torch's agent asks for

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        # a new one for each attempt: in the agent's own one stand the addresses of the dead
        self._meeting_place = TCPStore(_HERE, 0, is_master=True, wait_for_workers=False)
        common = {
            "LOCAL_WORLD_SIZE": str(spec.local_world_size),
            "MASTER_ADDR": _HERE,
            "MASTER_PORT": str(self._meeting_place.port),
            "TORCHELASTIC_RESTART_COUNT": str(spec.max_restarts - self._remaining_restarts),
            "TORCHELASTIC_RUN_ID": spec.rdzv_handler.get_run_id(),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        environments = [
            {
                **os.environ,
                **common,
                "RANK": str(worker.global_rank),
                "LOCAL_RANK": str(worker.local_rank),
                "WORLD_SIZE": str(worker.world_size),
            }
            for worker in worker_group.workers
        ]
        self.failure = None
        self.processes = Processes(self._job, environments)
        return dict(self.processes.pids)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        processes = self.processes
        processes.look()
        if processes.first_failure() is not None:
            processes.wait(_SETTLE)
        failure = processes.first_failure()
        if failure is not None and not failure.asked_for:
            self._end_after(failure)
            return RunResult(state=WorkerState.FAILED)
        if processes.all_ended and failure is None:
            values = dict.fromkeys(processes.ends)
            return RunResult(state=WorkerState.SUCCEEDED, return_values=values)
        if failure is not None:
            self._leave_in_time()
        if processes.all_ended or time.monotonic() > self._deadline:
            self._remaining_restarts = 0
            return RunResult(state=WorkerState.FAILED)
        return RunResult(state=WorkerState.HEALTHY)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self.processes.kill()

    # What is ours

    def leave(self) -> None:
        """Give up the place where ranks meet."""
        self._worker_group.spec.rdzv_handler.shutdown()

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """Pass it on, once; a second Ctrl-C ends all at once."""
        if number == signal.SIGINT and self._interrupted:
            self.processes.signal(signal.SIGKILL)
            raise KeyboardInterrupt
        self._remaining_restarts = 0
        if number == signal.SIGINT:
            self._interrupted = True
        else:
            self._leave_in_time()
        self.processes.signal(number)

    def _leave_in_time(self) -> None:
        self._deadline = min(self._deadline, time.monotonic() + self._grace + self._dead_after)

    def _end_after(self, failure: End) -> None:
        """Say what happened, and end the other processes."""
        if failure.report is not None and failure.report.text:
            print(failure.report.text, file=sys.stderr, flush=True)
        self.processes.wait(self._dead_after / 2)
        self.processes.kill()
        spec = self._worker_group.spec
        self.failure = failure
        others = "; the other ranks were ended" if spec.local_world_size > 1 else ""
        self.verdict = failure.words + others
        if failure.code == _REFUSED:
            self._remaining_restarts = 0
        elif self._remaining_restarts:
            number = spec.max_restarts - self._remaining_restarts + 1
            again = f"{self.verdict}; starting again (restart {number} of {spec.max_restarts})"
            print(again, file=sys.stderr, flush=True)
        elif spec.max_restarts:
            self.verdict += f"; {spec.max_restarts} of {spec.max_restarts} restarts are used up"


@contextmanager
def _listening(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within it signals go to the handler; outside the main thread Python takes none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in FORWARDED}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
