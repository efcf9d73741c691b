"""Processes that share a layer or a sequence draw other random numbers within it."""

import pytest
import torch
from torch import nn

from stoker.parallel.rank_draws import RankDraws, has_dropout, own_draws


def draws_of(rank, parts=1):
    torch.manual_seed(4)
    draws, found = RankDraws(rank), []
    for _ in range(parts):
        draws.begin(torch.device("cpu"))
        draws.begin(torch.device("cpu"))  # each layer of a region may begin it
        found += torch.rand(3).tolist()
        draws.end()
    return found, torch.rand(3).tolist()


def test_each_rank_draws_its_own_numbers_and_then_the_same_again():
    (first, then), (second, then_too) = draws_of(0), draws_of(1)
    assert set(first).isdisjoint(second)
    assert then == then_too


def test_parts_that_follow_each_other_draw_other_numbers():
    found, _ = draws_of(1, parts=3)
    assert len(set(found)) == 9


def test_a_part_that_does_not_end_leaves_nothing_behind():
    torch.manual_seed(4)
    draws = RankDraws(1)
    draws.begin(torch.device("cpu"))
    draws.forget()
    before = torch.get_rng_state()
    draws.end()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_context_in_which_nothing_is_drawn_leaves_the_generators_as_they_were():
    torch.manual_seed(4)
    expected, then = torch.rand(3).tolist(), set()
    torch.manual_seed(4)
    with own_draws(1, torch.device("cpu")):
        pass
    assert torch.rand(3).tolist() == expected
    for rank in (0, 1):
        torch.manual_seed(4)
        with own_draws(rank, torch.device("cpu")):
            assert torch.rand(3).tolist() != expected
        then.add(float(torch.rand(())))
    assert len(then) == 1


class Attention(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.attention_dropout = rate


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.1)), True),
        (nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.0)), False),
        (Attention(0.1), True),
        (Attention(0.0), False),
        (nn.TransformerEncoderLayer(2, 1, dropout=0.1), True),
        (nn.Linear(1, 1), False),
    ],
)
def test_modules_that_drop_values_are_known(module, expected):
    assert has_dropout(module) is expected
