"""`PermutationSampler`: every index once, in constant memory, at any position at once."""

import shutil
import tracemalloc
from collections import Counter
from itertools import islice, pairwise

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import Engine, Trainer, hooks
from stoker.data import PermutationSampler


@pytest.mark.parametrize("length", [0, 1, 2, 3, 5, 8, 63, 64, 65, 1000, 4097, 10_000])
def test_a_pass_yields_every_index_once(length):
    torch.manual_seed(length)
    assert sorted(PermutationSampler(length)) == [*range(length)]


def test_each_pass_has_an_order_of_its_own_that_the_seed_decides():
    sampler = PermutationSampler(range(1000))
    torch.manual_seed(0)
    first, second = list(sampler), list(sampler)
    torch.manual_seed(0)
    assert [list(sampler), list(sampler)] == [first, second]
    assert first != second != [*range(1000)]


def test_each_index_comes_at_each_position_about_equally_often():
    torch.manual_seed(0)
    seen = Counter((at, i) for _ in range(4000) for at, i in enumerate(PermutationSampler(6)))
    assert len(seen) == 36
    chi_squared = sum((count - 4000 / 6) ** 2 / (4000 / 6) for count in seen.values())
    assert chi_squared < 52.6  # 99.9 % of 25 degrees of freedom


def test_neighbours_do_not_stay_together():
    torch.manual_seed(0)
    order = list(PermutationSampler(100_000))
    steps = [abs(a - b) for a, b in pairwise(order)]
    assert abs(sum(steps) / len(steps) - 100_000 / 3) < 1000
    assert sum(step == 1 for step in steps) < 20


@pytest.mark.parametrize("count", [0, 1, 4095, 4096, 5000, 9999, 10_000])
def test_a_pass_continues_at_any_position_as_it_would_have(count):
    torch.manual_seed(3)
    straight = list(PermutationSampler(10_000))
    torch.manual_seed(3)
    moved = iter(PermutationSampler(10_000))
    moved.__setstate__(count)
    assert list(moved) == straight[count:]


def test_a_billion_indices_take_no_memory_and_no_time_to_reach():
    torch.manual_seed(0)
    tracemalloc.start()
    try:
        found = iter(PermutationSampler(10**9))
        found.__setstate__(10**9 - 10)
        last = list(found)
        first = list(islice(PermutationSampler(10**9), 5000))
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()
    assert len(set(last)) == 10
    assert all(0 <= index < 10**9 for index in first + last)
    assert len(set(first)) == 5000


@pytest.mark.parametrize("length", [-1, 2**62 + 1])
def test_a_length_out_of_range_is_refused(length):
    with pytest.raises(ValueError, match="the length of the data must be from 0"):
        PermutationSampler(length)


class Squares(Dataset):
    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        x = torch.tensor([float(index % 97)])
        return x, x * x


def trained(run_dir, *, stop_at=None, generator=None):
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    sampler = PermutationSampler(Squares(), generator=generator)
    loader = DataLoader(Squares(), batch_size=4, sampler=sampler)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=1e-5), nn.MSELoss())
    stop = hooks.Callback(after_step=lambda run: run.step == stop_at and run.stop("enough"))
    used = [hooks.Loss(), hooks.Checkpoint("3st"), stop]
    trainer = Trainer(engine, used, run_dir=run_dir, seed=0)
    trainer.fit(loader, max_steps=12)
    return [parameter.tolist() for parameter in model.parameters()]


@pytest.mark.parametrize("own", [False, True], ids=["global generator", "own generator"])
def test_a_run_on_a_billion_samples_resumes_at_the_same_bits(tmp_path, own):
    made = lambda: torch.Generator().manual_seed(7) if own else None
    straight = trained(tmp_path / "straight", generator=made())
    trained(tmp_path / "run", stop_at=7, generator=made())
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000007")  # as if killed after step 6
    assert trained(tmp_path / "run", generator=made()) == straight
