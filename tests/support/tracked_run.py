"""A training that three trackers follow, and what their stores hold of it afterwards.

    python tracked_run.py FOLDER [KILLED_AT]

Without a step to be killed at, it trains to the end and prints what is in the stores.
"""

import json
import os
import signal
import struct
import sys
from pathlib import Path

from stoker import Trainer, events, hooks
from support.toys import batches, engine

BLOCK = 32768


def main(folder: Path, killed_at: int) -> None:
    def last_words(run):
        if run.step == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    uri = f"sqlite:///{folder / 'mlflow.db'}"
    kill = hooks.Callback(name="kill", priority=99, after_step=last_words)
    odd = hooks.Callback(after_step=lambda run: run.events.put_scalar("odd <name>", float("nan")))
    trackers = [events.WandB(mode="offline"), events.MLflow(uri=uri), events.TensorBoard()]
    write = hooks.Write(events.JsonLines(), *trackers, every=2)
    used = [hooks.Loss(window=2), hooks.LR(), odd, write, hooks.Checkpoint("3st"), kill]
    run = Trainer(engine(), used, run_dir=folder / "run")
    run.fit(batches(), batches(), epochs=3)
    stores = {
        "WandB": of_wandb(folder / "run"),
        "MLflow": of_mlflow(folder / "run", uri),
        "TensorBoard": of_tensorboard(folder / "run"),
    }
    print(json.dumps(stores))


def of_mlflow(folder: Path, uri: str) -> dict:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    (found,) = client.search_runs([client.get_experiment_by_name("stoker").experiment_id])
    assert (found.info.run_name, found.info.status) == (folder.name, "FINISHED")
    names = found.data.metrics
    history = {name: client.get_metric_history(found.info.run_id, name) for name in names}
    return {name: [[one.step, one.value] for one in metrics] for name, metrics in history.items()}


def of_tensorboard(folder: Path) -> dict:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder / "tb"))
    board.Reload()
    return {
        name: [[one.step, one.value] for one in board.Scalars(name)]
        for name in board.Tags()["scalars"]
    }


def of_wandb(folder: Path) -> dict:
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = (folder / "wandb").glob("wandb/offline-run-*/*.wandb")
    found: dict = {}
    for data in records(file.read_bytes()):
        record = Record.FromString(data)
        if not record.HasField("history"):
            continue
        row = {item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json)
               for item in record.history.item}  # fmt: skip
        for name, value in row.items():
            if not name.startswith("_"):
                found.setdefault(name, []).append([row["_step"], float(value)])
    return found


def records(data: bytes):
    """The records of W&B's log: in blocks, each in one piece or several."""
    at, piece = 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        piece += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield piece
            piece = b""


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
