"""A training in two processes, what may happen to it, and what two of them must agree in."""

import json
from pathlib import Path
from shutil import rmtree

CONFIG = Path(__file__).with_name("frail.yaml")
LOCAL = ("--nproc", "2", "run.dead_after=4")
IN_FORWARD = {"rank": 1, "where": "forward", "step": 2}
IN_ALL_REDUCE = {"rank": 1, "where": "all-reduce", "step": 4}
IN_A_SAVE = {"rank": 0, "where": "save file-written:3"}
RAISES = {"rank": 1, "where": "hook", "step": 3}
FAULTS = [
    IN_FORWARD,
    IN_ALL_REDUCE,
    IN_A_SAVE,
    {"rank": 1, "where": "save file-synced:2"},
    {"rank": 0, "where": "save renamed:2"},
    {"rank": 0, "where": "save trashed"},
    {"rank": 0, "where": "all-reduce", "step": 11},
]


def result(folder: Path) -> dict:
    """What two runs must agree in: the weights, and all rows but their times."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "weights": (folder / "model.safetensors").read_bytes(),
        "rows": [{k: v for k, v in row.items() if not k.startswith("time")} for row in rows],
    }


def plan_faults(folder: Path, *faults: dict) -> None:
    """Let these happen, one in each attempt at the training."""
    rmtree(folder / "faults", ignore_errors=True)
    (folder / "faults").mkdir()
    for number, fault in enumerate(faults):
        (folder / "faults" / str(number)).write_text(json.dumps(fault))
