"""A full or unwritable disk: the file is named, and the stream of a resumed run is undamaged."""

import json
import os
import resource
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from stoker import Engine, Trainer, events, hooks
from stoker.core.errors import WriteError
from stoker.events.writers import jsonl
from stoker.events.writers.jsonl import read_json_lines
from support.checkpoint_states import in_child

LONG = "x" * 50_000
"""A name that makes each row of the metrics larger than the files of a checkpoint."""

DATA = [(torch.ones(3, 4), torch.tensor([0, 1, 0]))] * 5


def trainer(run_dir, *chosen):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    write = hooks.Write(events.JsonLines(), every=1)
    long = hooks.Callback(after_step=lambda run: run.events.put_scalar(LONG, run.step))
    made = [
        hooks.Loss(),
        long,
        write,
        hooks.LogFile(),
        hooks.Ledger(),
        hooks.Checkpoint("5st"),
        *chosen,
    ]
    return Trainer(engine, made, run_dir=run_dir)


def limit_files(size):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def train_until_full(run_dir):
    jsonl._SECONDS = 0  # each line reaches the file at once
    grow = hooks.Callback(
        after_step=lambda run: (
            limit_files((run_dir / "metrics.jsonl").stat().st_size + 40) if run.step == 7 else None
        )
    )
    grow.priority, grow.name, grow.observes = 95, "grow", True
    one = trainer(run_dir, grow)
    try:
        one.fit(DATA, epochs=4)
    except WriteError as error:
        message = str(error)
    limit_files(resource.RLIM_INFINITY)
    (run_dir / "message").write_text(message)
    assert one.run.step == 8


@pytest.mark.process
def test_a_full_disk_in_the_metrics_is_one_sentence_and_the_stream_is_undamaged(tmp_path):
    full, straight = tmp_path / "full", tmp_path / "straight"
    assert in_child(train_until_full, full) == 0
    message = (full / "message").read_text()
    assert message.startswith(f"'{full}/metrics.jsonl' cannot be written: File too large (")
    assert "free); make room for it" in message
    assert "\n" not in message
    text = (full / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    assert [json.loads(line)["step"] for line in text.splitlines()] == [*range(1, 8)]
    trainer(full).fit(DATA, epochs=4)
    trainer(straight).fit(DATA, epochs=4)
    assert stream(full) == stream(straight)


def stream(run_dir):
    rows = read_json_lines(run_dir / "metrics.jsonl")
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_writer_without_space_is_named():
    write = hooks.Write(events.JsonLines("/dev/full"), every=1)
    model = nn.Linear(4, 2)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    with pytest.raises(WriteError, match=r"'/dev/full' cannot be written: .* free\)") as raised:
        Trainer(engine, [hooks.Loss(), write]).fit(DATA, epochs=1)
    assert raised.value.errno == 28


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_log_or_ledger_that_cannot_be_written_ends_no_run(tmp_path, capsys):
    run_dir = tmp_path / "run"

    def fill_disk(run):
        run_dir.mkdir()
        for name in ("log.txt", "ledger.jsonl"):
            (run_dir / name).symlink_to("/dev/full")

    one = trainer(run_dir, hooks.Callback(name="disk", attach=fill_disk, priority=1))
    one.fit(DATA, epochs=1)
    printed = capsys.readouterr().err
    assert printed.count("log.txt' cannot be written: No space left on device") == 1
    assert one.run.step == 5


def test_weights_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / "file").touch()
    one = trainer(tmp_path / "run", hooks.SaveWeights(tmp_path / "file" / "model.safetensors"))
    with pytest.raises(WriteError, match="model.safetensors' cannot be written: (Not a|File)"):
        one.fit(DATA, epochs=1)
    assert os.path.isfile(tmp_path / "file")
