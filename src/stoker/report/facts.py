"""`Facts`: everything that a report shows of one run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.report.goodput import Goodput, goodput_of
from stoker.rundir.checkpoint_info import CheckpointInfo
from stoker.rundir.reader import Curve, RunReader, Weights

_LOG_LINES = 40
_LOG_BYTES = 100_000


@dataclass
class Facts:
    """Everything that a report shows of one run; `faults` lists the files that are broken."""

    path: Path
    name: str
    config: str | None
    settings: dict[str, Any]
    environments: list[dict[str, Any]]
    curves: dict[str, Curve]
    last: dict[str, float]
    checkpoints: list[CheckpointInfo]
    goodput: Goodput | None
    weights: Weights | None
    log: list[str]
    faults: list[str]

    @property
    def state(self) -> str:
        """How the last attempt ended, as far as the ledger shows."""
        if self.goodput is None:
            return "unknown"
        return self.goodput.attempts[-1].end or "running or killed"


def read_facts(path: Path, *, quick: bool = False) -> Facts:
    """Read a run folder.

    Args:
        path: the folder.
        quick: check only the sizes of checkpoint files, not every byte.
    """
    reader = RunReader(path)
    reader.read_metrics()
    attempts = reader.attempts()
    log, _ = reader.log(_LOG_BYTES)
    return Facts(
        path=path,
        name=path.absolute().name,
        config=reader.config_text(),
        settings=reader.config(),
        environments=reader.environments(),
        curves=reader.curves(),
        last=reader.last_row(),
        checkpoints=reader.checkpoints(verify=not quick)[::-1],
        goodput=goodput_of(attempts) if attempts else None,
        weights=reader.weights(),
        log="\n".join(log).splitlines()[-_LOG_LINES:],
        faults=reader.faults,
    )
