"""The elastic agent of the local launcher: start ranks, watch them, restart or end them."""

import os
import signal
import sys
import time
from collections.abc import Callable
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
from stoker.core.rank_status import HUNG
from stoker.launch.elastic import run_elastic
from stoker.launch.processes import ExitStatus, Processes, signals_to
from stoker.launch.rank import serialize

_LOCALHOST = "127.0.0.1"
_SETTLE = 0.3  # seconds for ranks that fail because another one died to do so
_USAGE = 2  # exit code of invalid input: a restart would fail again


def run_agent(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    nproc: int,
    max_restarts: int,
    dead_after: float,
    grace: float,
    elastic: tuple[int, int] | None = None,
) -> Any:
    """Run the function in ``nproc`` processes of this machine and return the value of rank 0."""
    if elastic is not None:
        return run_elastic(serialize(fn, args), nproc, elastic, max_restarts, dead_after, grace)
    agent = Agent(serialize(fn, args), nproc, max_restarts, dead_after=dead_after, grace=grace)
    with signals_to(agent.on_signal):
        try:
            agent.run()
        finally:
            agent.close()
    if agent.failure is not None:
        raise RankFailed(agent.failure_text, agent.failure.exit_code)
    stopped = agent.processes.first_failure()
    if stopped is not None and stopped.exit_code == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if stopped is not None or not agent.processes.all_exited:
        raise Preempted
    result = agent.processes.exited[0].result
    return result.value if result is not None else None


class Agent(SimpleElasticAgent):
    """Torch's elastic agent with our own processes.

    Torch provides the rendezvous and the restarts. This class starts the processes,
    separates the first failure from those that it caused, and ends all processes in bounded time.

    Args:
        job: the serialized function, see `stoker.launch.rank.serialize`.
        nproc: number of processes.
        max_restarts: how often a failed job is restarted.
        dead_after: seconds within which the job ends after a process died. The other processes may
            exit by themselves during the first half.
        grace: seconds allowed for the final checkpoint after SIGTERM.
    """

    def __init__(
        self, job: bytes, nproc: int, max_restarts: int, *, dead_after: float, grace: float
    ) -> None:
        rendezvous = RendezvousParameters(
            backend="c10d",
            endpoint=f"{_LOCALHOST}:0",
            run_id=uuid4().hex,
            min_nodes=1,
            max_nodes=1,
            local_addr=_LOCALHOST,
        )
        super().__init__(
            WorkerSpec(
                role="rank",
                local_world_size=nproc,
                entrypoint="stoker",
                rdzv_handler=get_rendezvous_handler(rendezvous),
                max_restarts=max_restarts,
                local_addr=_LOCALHOST,
            )
        )
        self._job, self._dead_after, self._grace = job, dead_after, grace
        self._deadline = float("inf")
        self._interrupted = False
        self.processes = Processes(job, [])
        self.failure: ExitStatus | None = None
        self.failure_text = ""

    # Methods that torch's agent calls

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        # a new store for each attempt: the agent's own one holds the addresses of dead ranks
        self._attempt_store = TCPStore(_LOCALHOST, 0, is_master=True, wait_for_workers=False)
        common = {
            "LOCAL_WORLD_SIZE": str(spec.local_world_size),
            "MASTER_ADDR": _LOCALHOST,
            "MASTER_PORT": str(self._attempt_store.port),
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
        processes.poll()
        if processes.first_failure() is not None:
            processes.wait(_SETTLE)
            processes.wait_for_cause(self._dead_after / 2)
        failure = processes.first_failure()
        if failure is not None and not self._is_preemption(failure):
            self._end_after(failure)
            return RunResult(state=WorkerState.FAILED)
        if processes.all_exited and failure is None:
            values = dict.fromkeys(processes.exited)
            return RunResult(state=WorkerState.SUCCEEDED, return_values=values)
        if failure is not None and failure.result is None:  # its grace period was over
            self._deadline = min(self._deadline, time.monotonic() + self._dead_after / 2)
        elif failure is not None:
            self._set_deadline()
        if processes.all_exited or time.monotonic() > self._deadline:
            self._remaining_restarts = 0
            return RunResult(state=WorkerState.FAILED)
        return RunResult(state=WorkerState.HEALTHY)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self.processes.kill()

    # Our own methods

    def close(self) -> None:
        """Shut down the rendezvous."""
        self._worker_group.spec.rdzv_handler.shutdown()

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """Forward a signal to the ranks; a second Ctrl-C kills them immediately."""
        if number == signal.SIGINT and self._interrupted:
            self.processes.signal(signal.SIGKILL)
            raise KeyboardInterrupt
        self._remaining_restarts = 0
        if number == signal.SIGINT:
            self._interrupted = True
        else:
            self._set_deadline()
        self.processes.signal(number)

    def _set_deadline(self) -> None:
        self._deadline = min(self._deadline, time.monotonic() + self._grace + self._dead_after)

    def _is_preemption(self, failure: ExitStatus) -> bool:
        """Return whether a process exited because a signal preempts the job, even if it hung."""
        preempted = self._deadline < float("inf") or any(
            status.by_signal for status in self.processes.exited.values()
        )
        return preempted and (failure.by_signal or failure.lost_peer or failure.code == HUNG)

    def _end_after(self, failure: ExitStatus) -> None:
        """Print the failure and end the other processes."""
        if failure.result is not None and failure.result.text:
            print(failure.result.text, file=sys.stderr, flush=True)
        self.processes.wait(self._dead_after / 2)
        self.processes.kill()
        spec = self._worker_group.spec
        self.failure = failure
        others = "; the other ranks were stopped" if spec.local_world_size > 1 else ""
        self.failure_text = failure.summary + others
        if failure.code == _USAGE:
            self._remaining_restarts = 0
        elif self._remaining_restarts:
            number = spec.max_restarts - self._remaining_restarts + 1
            restart = f"restarting ({number} of {spec.max_restarts})"
            print(f"{self.failure_text}; {restart}", file=sys.stderr, flush=True)
        elif spec.max_restarts:
            self.failure_text += f"; all restarts used ({spec.max_restarts} of {spec.max_restarts})"
