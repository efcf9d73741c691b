"""What a layout rejects before any process starts."""

import itertools

import pytest
import torch
from torch import nn

from stoker import Engine, Layout

SIZES = ("replicate", "shard", "tensor", "pipeline")
TOGETHER = [
    {"replicate", "tensor"},
    {"shard", "tensor"},
    {"replicate", "shard"},
    {"pipeline", "replicate"},
    {"pipeline", "shard"},
    {"pipeline", "tensor"},
    {"pipeline", "replicate", "shard"},
    {"pipeline", "replicate", "tensor"},
    {"pipeline", "shard", "tensor"},
    {"replicate", "shard", "tensor"},
    {"context", "replicate"},
    {"context", "shard"},
    {"context", "tensor"},
]
REFUSED = [
    set(names)
    for count in (2, 3, 4)
    for names in itertools.combinations(SIZES, count)
    if set(names) not in TOGETHER
]


@pytest.mark.parametrize("names", REFUSED, ids=lambda names: " × ".join(sorted(names)))
def test_what_cannot_be_combined_is_refused_with_what_can(names):
    with pytest.raises(ValueError, match="is not supported: you can combine") as refusal:
        Layout(**dict.fromkeys(names, 2))
    for name in names:
        assert f"{name} 2" in str(refusal.value)


@pytest.mark.parametrize("names", TOGETHER, ids=lambda names: " × ".join(sorted(names)))
def test_what_can_be_combined_is_taken_and_counted(names):
    layout = Layout(**dict.fromkeys(names, 2))
    assert layout.processes == 2 ** len(names)
    assert layout.data_ranks == 2 ** len(names & {"replicate", "shard"})


def test_what_fills_is_refused_in_a_wrong_combination_when_it_is_filled():
    first, *others = sorted(REFUSED[0])
    layout = Layout(**{first: -1}, **dict.fromkeys(others, 2))
    with pytest.raises(ValueError, match="is not supported: you can combine"):
        layout.filled(2 ** len(REFUSED[0]))


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("size", [0, -2, 2.0, "2", True, None])
def test_a_size_is_an_integer(name, size):
    message = f"{name} must be an integer of at least 1, or -1 to fill, got"
    with pytest.raises(ValueError, match=message):
        Layout(**{name: size})


def test_only_one_size_fills():
    with pytest.raises(ValueError, match=r"replicate and shard are both -1, .* set replicate to 1"):
        Layout(replicate=-1, shard=-1)
    assert Layout(replicate=-1, shard=2).filled(8) == Layout(replicate=4, shard=2)


OPTIONS = {
    "blocks": ("shard", "blocks.*"),
    "reshard": ("shard", False),
    "offload": ("shard", True),
    "dtype": ("shard", "bf16"),
    "plan": ("tensor", {"0": "gather"}),
    "sequence_parallel": ("tensor", True),
    "loss_parallel": ("tensor", True),
    "sequence": ("pipeline", ("0", "1")),
    "split": ("pipeline", ("1",)),
    "schedule": ("pipeline", "gpipe"),
    "microbatches": ("pipeline", 4),
    "unused": ("replicate", True),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_that_would_do_nothing_is_refused(option):
    size, value = OPTIONS[option]
    Layout(**{size: 2, option: value})  # with its size it is accepted
    with pytest.raises(ValueError, match=f"{option} is an option of {size}, but {size} is 1"):
        Layout(**{option: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard": 2, "dtype": "float32"}, "dtype must be 'bf16', 'fp16' or 'fp32', got 'float32'"),
        ({"virtual": 2}, "virtual is an option of pipeline, but pipeline is 1"),
        ({"pipeline": 2, "virtual": 0}, "virtual must be an integer of at least 1, got 0"),
        (
            {"pipeline": 2, "microbatches": 1.5},
            "microbatches must be an integer of at least 1, got 1.5",
        ),
        (
            {"tensor": 2, "context": 2, "sequence_parallel": True},
            "sequence_parallel runs all blocks on parts of the sequence, but layout tensor 2 × ",
        ),
        ({"tensor": 2, "loss_parallel": 1}, "loss_parallel must be True or False, got 1"),
        ({"pipeline": 2, "schedule": "1f2b"}, "'1f2b'.*did you mean '1f1b'"),
        ({"pipeline": 2, "schedule": "gpipe", "virtual": 2}, "gpipe has one stage per process"),
        ({"pipeline": 4, "microbatches": 2}, "2 micro-batches are too few for 4 stages"),
        (
            {"pipeline": 2, "schedule": "zero-bubble", "microbatches": 3},
            "3 micro-batches are not a multiple of 2 processes",
        ),
        (
            {"pipeline": 2, "replicate": 2, "unused": True},
            "unused is an option of replicate alone",
        ),
    ],
    ids=str,
)
def test_a_wrong_option_is_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        Layout(**options)


def test_a_layout_for_other_processes_is_refused_with_the_way_to_start_them():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match="needs 2 processes, but the run has 1 process: start it "
                                         "with --nproc 2, or change the layout"):  # fmt: skip
        Engine(model, optimizer, layout=Layout(shard=2))
    with pytest.raises(ValueError, match="needs a multiple of 2 processes"):
        Layout(replicate=-1, shard=2).filled(3)
