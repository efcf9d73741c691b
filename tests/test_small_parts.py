"""Periods, trees, seeds, logs: the parts that everything stands on."""

import random
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker import Every, seed_all
from stoker.core import tree
from stoker.core.errors import did_you_mean
from stoker.core.log import LogFile, get_logger
from stoker.core.seed import preserve_rng


@given(st.integers(1, 50), st.integers(0, 500))
def test_a_period_is_due_after_completed_multiples(count, number):
    assert Every.of(count).at_step(number) == (number > 0 and number % count == 0)
    assert Every.of(f"{count}ep").at_epoch(number) == (number > 0 and number % count == 0)
    assert not Every.of(f"{count}ep").at_step(number)
    assert not Every.of(count).at_epoch(number)


@given(st.integers(1, 10**6), st.sampled_from(["st", "ep", "min"]))
def test_a_period_reads_back_as_it_is_written(count, unit):
    every = Every(count, unit)
    assert Every.of(f"{count}{unit}") == every
    assert Every.of(every) is every


def test_minutes_may_be_parts_of_one():
    assert Every.of("0.5min").at_seconds(30)
    assert not Every.of("0.5min").at_seconds(29)


@pytest.mark.parametrize(
    "wrong", ["", "ep", "3", "3days", "-1st", 0, "0ep", "1.5ep", True, 2.5, None]
)
def test_what_is_no_period_is_refused(wrong):
    with pytest.raises(ValueError, match="period|Every takes"):
        Every.of(wrong)


Pair = namedtuple("Pair", "a b")


@dataclass
class Reply:
    logits: torch.Tensor
    note: str = "x"


TREE = {
    "pair": Pair(torch.ones(2, 3), [torch.zeros(2)]),
    "text": "unchanged",
    "reply": Reply(torch.ones(2)),
    "ordered": OrderedDict(x=torch.ones(2, 1)),
}


def test_a_tree_keeps_its_shape_when_its_tensors_change():
    doubled = tree.map_tensors(lambda t: t + 1, TREE)
    assert isinstance(doubled["pair"], Pair)
    assert isinstance(doubled["ordered"], OrderedDict)
    assert torch.equal(doubled["reply"].logits, torch.full((2,), 2.0))
    assert doubled["text"] == "unchanged"
    assert len(list(tree.tensors(TREE))) == 4


def test_trees_are_joined_along_the_first_dimension():
    joined = tree.concatenate([TREE, TREE, TREE])
    assert joined["pair"].a.shape == (6, 3)
    assert joined["reply"].logits.shape == (6,)
    assert joined["text"] == ["unchanged"] * 3
    assert tree.concatenate([torch.tensor(1.0), torch.tensor(2.0)]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(5, 2), 5),
        ((torch.zeros(4), torch.zeros(4)), 4),
        ({"x": [torch.zeros(3, 2)]}, 3),
        (torch.zeros(()), 1),
        ((["a", "b"], [0, 1]), 2),
        ({"n": 3}, 1),
    ],
)
def test_the_size_of_a_batch_is_found(batch, size):
    assert tree.batch_size(batch) == size


def test_a_tree_is_described_in_a_few_words():
    text = tree.describe((torch.zeros(8, 3), {"y": torch.zeros(8).long()}, "x"))
    assert text == "(float32[8, 3], {y: int64[8]}, str)"


def test_one_seed_sets_all_generators():
    draws = []
    for _ in range(2):
        seed_all(123)
        draws.append((random.random(), np.random.rand(), float(torch.rand(()))))
    assert draws[0] == draws[1]


def test_what_is_drawn_undisturbed_leaves_no_trace():
    seed_all(5)
    expected = (random.random(), np.random.rand(), float(torch.rand(())))
    seed_all(5)
    with pytest.raises(KeyError), preserve_rng():
        random.random(), np.random.rand(), torch.rand(3)
        raise KeyError
    assert (random.random(), np.random.rand(), float(torch.rand(()))) == expected


def test_near_misses_are_answered_in_the_spelling_there_is():
    assert (
        did_you_mean("EARLYSTOPING", ["EarlyStopping", "Loss"]) == "; did you mean 'EarlyStopping'?"
    )
    assert did_you_mean("zzz", ["EarlyStopping"]) == ""


def test_a_log_file_waits_for_its_first_step_and_then_has_everything(tmp_path):
    import logging

    ready = False
    handler = LogFile(tmp_path, lambda: ready)
    logging.getLogger("stoker").addHandler(handler)
    try:
        get_logger().info("before")
        assert list(tmp_path.iterdir()) == []
        ready = True
        get_logger().warning("after")
        get_logger().info("not for this rank", ranks=[1])
    finally:
        logging.getLogger("stoker").removeHandler(handler)
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == ["INFO before", "WARNING after"]


def test_the_terminal_hears_a_message_once(capsys, monkeypatch):
    import logging

    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    get_logger().info("said once")
    get_logger().warning("look")
    get_logger().debug("not shown")
    assert capsys.readouterr().err == "said once\nwarning: look\n"


def test_a_program_that_wants_to_hear_less_does_and_the_file_has_everything(tmp_path, caplog):
    import logging

    handler = LogFile(tmp_path, lambda: True)
    logging.getLogger("stoker").addHandler(handler)
    caplog.set_level("ERROR")
    try:
        get_logger().info("quiet")
        get_logger().error("loud")
    finally:
        logging.getLogger("stoker").removeHandler(handler)
    assert "quiet" not in caplog.text
    assert "loud" in caplog.text
    assert "quiet" in (tmp_path / "log.txt").read_text()


def test_a_log_that_cannot_be_written_does_not_end_the_run(tmp_path, monkeypatch):
    import logging

    monkeypatch.setattr(logging, "raiseExceptions", False)
    (tmp_path / "file").touch()
    handler = LogFile(tmp_path / "file" / "below", lambda: True)
    handler.write(logging.INFO, "nowhere to go")
