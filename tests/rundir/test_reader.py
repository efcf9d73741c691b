"""A run folder is read without following links, and whatever its files hold."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.config.lazy import L
from stoker.rundir.provenance import (
    ABSENT,
    differences,
    flatten,
    format_value,
    plain_value,
)
from stoker.rundir.reader import RunReader
from stoker.rundir.safe_folder import _parse_strictly, parse_json
from support.board_runs import make_checkpoint, make_run, rows


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path, "run")


def test_an_empty_folder_reads_as_nothing_and_is_no_fault(tmp_path):
    reader = RunReader(tmp_path)
    reader.read_metrics()
    assert reader.config_text() is None
    assert reader.config() == reader.environment() == reader.cost() == reader.curves() == {}
    assert reader.attempts() == reader.checkpoints() == reader.media() == reader.faults == []
    assert reader.weights() is None


def test_a_half_written_last_line_is_no_fault(run):
    (run / "metrics.jsonl").write_text(rows(3) + '{"step": 4, "train')
    (run / "ledger.jsonl").write_text('{"attempt": "a"')
    reader = RunReader(run)
    reader.read_metrics()
    assert reader.curves()["train/loss"].steps.tolist() == [1, 2, 3]
    assert reader.attempts() == []
    assert reader.faults == []


def test_a_broken_file_is_a_fault_until_it_is_mended(run):
    reader = RunReader(run)
    (run / "env.json").write_text("[]")
    assert reader.environment() == {}
    assert reader.faults == ["env.json is broken: it holds a list, expected an object"]
    (run / "env.json").write_text('{"python": "3.11"}')
    assert reader.environment() == {"python": "3.11"}
    assert reader.faults == []


def test_links_are_not_followed_and_named(run, tmp_path):
    (run / "env.json").rename(tmp_path / "elsewhere.json")
    (run / "env.json").symlink_to(tmp_path / "elsewhere.json")
    (tmp_path / "elsewhere").mkdir()
    make_checkpoint(tmp_path / "elsewhere", 10)
    (run / "checkpoints").symlink_to(tmp_path / "elsewhere" / "checkpoints")
    reader = RunReader(run)
    assert reader.environment() == {}
    assert reader.checkpoints() == []
    assert reader.faults == [
        "env.json cannot be read: Too many levels of symbolic links",
        "checkpoints is a link, which is not followed",
    ]


def test_a_config_that_is_too_large_is_not_read(run):
    (run / "config.yaml").write_text("a: " + "x" * (1 << 20))
    reader = RunReader(run)
    assert reader.config() == {}
    assert reader.faults == ["config.yaml cannot be read: it is larger than 1,048,576 bytes"]


def test_the_environments_of_attempts_come_in_order(run):
    for attempt in (2, 10, 3):
        (run / f"env-{attempt}.json").write_text(json.dumps({"attempt": attempt}))
    assert [env.get("attempt") for env in RunReader(run).environments()] == [None, 2, 3, 10]


def test_checkpoints_are_verified_on_request(run):
    make_checkpoint(run, 10)
    damaged = make_checkpoint(run, 20)
    (damaged / "model.safetensors").write_bytes(b"weighty")
    reader = RunReader(run)
    assert [one.state for one in reader.checkpoints()] == ["sizes match", "sizes match"]
    assert [one.state for one in reader.checkpoints(verify=True)] == ["broken", "verified"]


def test_a_list_of_plain_values_is_one_leaf():
    tree = {"optimizer": {"betas": [0.9, 0.95], "groups": [{"lr": 1}]}, "none": {}}
    assert flatten(tree) == {"optimizer.betas": [0.9, 0.95], "optimizer.groups.0.lr": 1, "none": {}}
    assert plain_value([0.9, None, True]) == "[0.9, null, true]"


def test_only_the_keys_that_differ_are_listed():
    (found,) = differences([{"a": 1, "b": float("nan")}, {"a": 1.0, "b": float("nan"), "c": None}])
    assert found == ("c", [ABSENT, None])
    assert [format_value(value) for value in found.values] == ["", "null"]


def test_a_changed_config_is_listed_by_its_keys(tmp_path):
    from stoker.config import Config
    from stoker.rundir.identity import Identity, flat_params, params_changes

    def tree(width, **run):
        model = L("torch.nn.Linear")(4, width)
        return Config({"model": model, "run": {"seed": 1, "epochs": 2, **run}}).resolved()

    saved = Identity({}, flat_params(tree(3)), is_config=True)
    (tmp_path / "identity.json").write_text(saved.to_json())

    def changes(width, **run):
        return params_changes(tmp_path, tree(width, **run))

    assert changes(3, epochs=9) == []
    assert changes(5) == ["model.1 was 3 and is 5"]
    assert changes(3, seed=2) == ["run.seed was 1 and is 2"]


@pytest.mark.slow
@given(st.binary() | st.text().map(lambda text: json.dumps(text).encode()))
def test_json_is_read_the_same_without_orjson(data):
    def outcome(parse):
        try:
            return repr(parse(data))
        except ValueError:
            return "not JSON"

    if b"\\ud" not in data:  # half a surrogate pair: only json takes it
        assert outcome(_parse_strictly) == outcome(parse_json)


@pytest.mark.parametrize(("steps", "state"), [(40, "finished"), (90, "stopped")])
def test_a_run_without_log_and_ledger_has_the_state_of_its_newest_checkpoint(
    tmp_path, steps, state
):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(f"run: {{max_steps: {steps}}}\n")
    make_checkpoint(run, 20)
    make_checkpoint(run, 40)
    reader = RunReader(run)
    reader.read_metrics()
    found = reader.status()
    assert (found.state, found.step) == (state, 40)
