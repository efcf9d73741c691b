"""Whatever the files of a run hold, the board shows the run and goes on."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.board_runs import make_checkpoint, make_run, rows, said, served

FILES = [
    "metrics.jsonl", "log.txt", "ledger.jsonl", "config.yaml", "env.json", "cost.json",
    "media.jsonl", "checkpoints/.lock/00000001.json", "checkpoints/step-00000010/MANIFEST.json",
    "checkpoints/step-00000010/model.safetensors",
]  # fmt: skip
TRUTH = {
    "metrics.jsonl": rows(5).encode(),
    "log.txt": f"2026-01-01 00:00:00 INFO {said('finished')}\n".encode(),
    "config.yaml": b"a: &x [1, *x]\nrun: {epochs: 3, max_steps: .inf}\n",
    "env.json": b'{"a": [1, {"b": null}]}',
    "cost.json": b'{"breakdown": {"forward": 0.1}}',
    "media.jsonl": b'{"step": 1, "name": "a", "kind": "text", "text": "t"}\n',
    "checkpoints/.lock/00000001.json": b'{"token": "a", "host": "x", "kernel": "y", "pid": 1, '
    b'"started": "y", "since": 1, "renewed": 2}',
}
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
near_truth = st.dictionaries(
    st.sampled_from(
        [
            "step",
            "epoch",
            "samples",
            "time",
            "train/loss",
            "val/accuracy",
            "pid",
            "host",
            "run",
            "name",
            "kind",
            "file",
            "text",
            "format",
            "info",
            "files",
            "checksum",
            "metrics",
        ]
    ),
    values,
).map(lambda row: json.dumps(row).encode() + b"\n")


@st.composite
def spoilt(draw, truth: bytes):
    at = draw(st.integers(0, len(truth)))
    return truth[:at] + draw(st.binary(max_size=20)) + truth[at + draw(st.integers(0, 5)) :]


def contents(name: str):
    one_of = [st.binary(max_size=400), st.lists(near_truth, max_size=4).map(b"".join)]
    return st.one_of(*one_of, spoilt(TRUTH[name])) if name in TRUTH else st.one_of(*one_of)


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    make_checkpoint(make_run(root, "one"), 10)
    with served(root) as found:
        found.root = root
        yield found


@pytest.mark.slow
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.fixed_dictionaries({}, optional={name: contents(name) for name in FILES}))
def test_random_bytes_in_every_file_break_nothing(board, files):
    for name, data in files.items():
        path = Path(board.root, "one", name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    assert board.get("runs")["runs"][0]["id"] == "one"
    found = board.get("run", run="one")
    assert not any("the run cannot be read" in fault for fault in found["faults"])
    names = found["names"]
    for axis in ("step", "samples", "epoch", "time"):
        board.get("series", run="one", name=names[:5], x=axis, **{"from": 1, "to": 1e18})
    board.get("log", run="one")
    board.get("table")
    board.get("compare", run=["one", "one"])
    board.get("timeline", run="one")
    board.get("verify", run="one", checkpoint="step-00000010")


BOMBS = {
    "config.yaml": [
        b"a: &a [x,x]\n" + b"".join(
            f"{c}: &{c} [*{p},*{p},*{p},*{p},*{p},*{p}]\n".encode()
            for p, c in zip("abcdefghijkl", "bcdefghijklm", strict=True)
        ),
        b"[" * 5000,
        b"? " * 3000,
        b"a: " + b"9" * 6000,
        b"!!python/object/apply:os.system ['touch /tmp/owned']",
        b"\x00" * 100,
        b"a: 2001-99-99",
    ],
    "env.json": [b"[" * 100000, b'{"a": ' * 1000 + b"1" + b"}" * 1000],
    "metrics.jsonl": [
        b'{"step": 1, ' + b", ".join(b'"n%d": 1' % n for n in range(5000)) + b"}\n",
        b'{"step": 1' + b"0" * 400 + b"}\n",
        b"[" * 100000 + b"\n",
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "data"), [(n, d) for n, all in BOMBS.items() for d in all],
                         ids=range(sum(map(len, BOMBS.values()))))  # fmt: skip
def test_files_that_would_explode_are_shown_in_part(tmp_path, name, data):
    folder = make_run(tmp_path, "one")
    (folder / name).write_bytes(data)
    with served(tmp_path) as board:
        found = board.get("run", run="one")
        assert len(found["config"]) <= 4000
        assert len(found["names"]) <= 2000
        board.get("compare", run=["one", "one"])
