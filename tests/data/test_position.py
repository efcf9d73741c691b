"""A pass that is resumed with new objects yields the rest with the same bits."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, SubsetRandomSampler

from stoker.core.seed import preserve_rng, random_state, seed_all, set_random_state
from stoker.data import BatchFeeder, SeededDataset
from support.loaders import (
    BATCHING,
    SAMPLERS,
    Items,
    Saved,
    assert_exact,
    drawn,
    generator,
    loader_of,
    plain,
    train,
)


@pytest.mark.parametrize("owner", ["none", "loader", "sampler"])
@pytest.mark.parametrize("batching", BATCHING)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_step_is_resumed_exactly(sampler, batching, owner):
    assert_exact(lambda: BatchFeeder(loader_of(sampler, batching, owner)), every=7, epochs=2)


@pytest.mark.slow
@pytest.mark.parametrize("owner", ["none", "loader"])
@pytest.mark.parametrize("sampler", ["random", "replacement", "weighted", "distributed"])
@pytest.mark.parametrize(
    "options",
    [
        {"accumulate": 3},
        {"accumulate": 2, "last_window": "drop"},
        {"limit": 3},
        {"limit": 0.6, "accumulate": 3},
    ],
    ids=str,
)
def test_windows_and_limits_are_resumed_exactly(options, sampler, owner):
    assert_exact(lambda: BatchFeeder(loader_of(sampler, "batches", owner), **options))


@pytest.mark.slow
@given(st.data())
@settings(max_examples=25, deadline=None)
def test_any_position_of_any_loader_is_resumed_exactly(data):
    names = st.sampled_from([name for name in SAMPLERS if name != "memoryless"])
    sampler, batching = data.draw(names), data.draw(st.sampled_from(BATCHING))
    owner = data.draw(st.sampled_from(["none", "loader", "sampler"]))
    options = {
        "accumulate": data.draw(st.integers(1, 4)),
        "limit": data.draw(st.none() | st.integers(1, 8)),
    }
    every = data.draw(st.integers(1, 5))
    assert_exact(lambda: BatchFeeder(loader_of(sampler, batching, owner), **options), every=every)


WORKERS = {
    "random": ("random", "batches", "none", {}),
    "generator": ("random", "drop_last", "loader", {}),
    "lazy": ("replacement", "batches", "sampler", {}),
    "eager": ("eager", "no batches", "none", {}),
    "persistent": ("random", "batches", "none", {"persistent_workers": True}),
    "persistent, eager": ("eager", "no batches", "loader", {"persistent_workers": True}),
}


@pytest.mark.process
@pytest.mark.parametrize("case", WORKERS)
def test_workers_are_resumed_exactly(case):
    sampler, batching, owner, options = WORKERS[case]
    options = {"num_workers": 2, "multiprocessing_context": "fork", **options}

    def make() -> BatchFeeder:
        dataset = SeededDataset(Items(), seed=4)
        return BatchFeeder(loader_of(sampler, batching, owner, dataset, **options), limit=5)

    assert_exact(make, every=3)


def test_skipped_samples_are_not_read():
    seed_all(1)
    feeder = BatchFeeder(DataLoader(Items(), batch_size=4, shuffle=True))
    passing = iter(feeder)
    seen = [next(passing) for _ in range(3)]
    state, now = feeder.state_dict(), random_state()
    rest = [window[0].tolist() for window in passing]
    fresh = DataLoader(Items(), batch_size=4, shuffle=True)
    other = BatchFeeder(fresh)
    other.load_state_dict(state)
    set_random_state(now)
    assert other.position.batches == 3
    assert [window[0].tolist() for window in other] == rest
    before = {int(row[0]) for window in seen for row in window[0]}
    assert len(fresh.dataset.read) == 8
    assert before.isdisjoint(fresh.dataset.read)


@pytest.mark.slow
def test_the_skipped_indices_of_a_torch_sampler_are_not_visited():
    class Spy(list):
        reads = 0

        def __getitem__(self, index):
            Spy.reads += 1
            return super().__getitem__(index)

    def make() -> BatchFeeder:
        data = Items(10_000)
        return BatchFeeder(DataLoader(data, sampler=SubsetRandomSampler(Spy(range(10_000)))))

    feeder = make()
    passing = iter(feeder)
    for _ in range(9_990):
        next(passing)
    state, Spy.reads = feeder.state_dict(), 0
    other = make()
    other.load_state_dict(state)
    assert [w[0].tolist()[0][0] for w in other] == [w[0].tolist()[0][0] for w in passing]
    assert Spy.reads == 20


@pytest.mark.process
def test_another_number_of_workers_yields_the_same_samples(caplog):
    def make(workers: int) -> BatchFeeder:
        context = "fork" if workers else None
        data = SeededDataset(Items())
        loader = DataLoader(
            data, 3, shuffle=True, num_workers=workers, multiprocessing_context=context
        )
        return BatchFeeder(loader)

    seed_all(1)
    saves: list[Saved] = []
    expected = train(make(0), saves=saves)
    feeder = make(2)
    feeder.load_state_dict(saves[3].feeder)
    assert "num_workers was 0, is 2" in caplog.text
    set_random_state(saves[3].random)
    assert train(feeder, begin=saves[3].epoch) == expected[saves[3].step :]


def test_validation_in_between_disturbs_nothing():
    validation = BatchFeeder(DataLoader(Items(), 6, shuffle=True, generator=generator()))

    def validate() -> None:
        with preserve_rng(*validation.generators()):
            for _ in validation:
                pass
            drawn()

    seed_all(1)
    plain_run = train(BatchFeeder(loader_of("random", "batches", "none")))
    seed_all(1)
    assert (
        train(BatchFeeder(loader_of("random", "batches", "none")), after_step=validate) == plain_run
    )
    assert_exact(lambda: BatchFeeder(loader_of("random", "batches", "none")), after_step=validate)


def test_state_dict_does_not_change_the_batches():
    seed_all(1)
    expected = [batch.tolist() for _ in range(2) for batch in loader_of("random", "batches", "no")]
    seed_all(1)
    feeders = [BatchFeeder(loader_of("random", "batches", "no")) for _ in range(2)]
    found = []
    for feeder in feeders:
        for window in feeder:
            found.append(window[0].tolist())
            feeder.state_dict()
    assert found == expected


def test_a_dataset_may_draw_from_the_generator_of_the_loader():
    class Sharing(Items):
        generator: torch.Generator

        def __getitem__(self, index: int) -> Tensor:
            return torch.rand(2, generator=self.generator)

    def make() -> BatchFeeder:
        data = Sharing()
        data.generator = generator()
        return BatchFeeder(DataLoader(data, 3, shuffle=True, generator=data.generator))

    assert_exact(make)


def test_the_state_is_json_apart_from_its_tensors():
    feeder = BatchFeeder(loader_of("subclass", "batches", "loader"))
    next(iter(feeder))
    json.dumps(plain(feeder.state_dict()))


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_sequence_is_read_by_index(kind):
    batches = kind(torch.full((2,), float(n)) for n in range(7))
    assert_exact(lambda: BatchFeeder(batches, 2))


def test_an_abandoned_pass_is_followed_by_a_new_one():
    seed_all(1)
    feeder = BatchFeeder(loader_of("random", "batches", "loader"))
    passing = iter(feeder)
    next(passing)
    feeder.end_pass()
    state = feeder.state_dict()
    expected = [window[0].tolist() for window in feeder]
    other = BatchFeeder(loader_of("random", "batches", "loader"))
    seed_all(1)
    other.load_state_dict(state)
    assert other.position.batches == 0
    found = [window[0].tolist() for window in other]
    assert [[row[0] for row in batch] for batch in found] == [
        [row[0] for row in batch] for batch in expected
    ]


def test_a_pass_left_at_its_last_window_is_completed_before_the_next():
    def make() -> BatchFeeder:
        return BatchFeeder(loader_of("random", "batches", "loader"), 2, last_window="drop")

    seed_all(1)
    expected = train(make(), epochs=2)
    seed_all(1)
    feeder = make()
    feeder.epoch = 0
    for _ in feeder:
        drawn()
        if feeder.exhausted:
            break
    feeder.end_pass()
    state, now = feeder.state_dict(), random_state()
    other = make()
    other.load_state_dict(state)
    set_random_state(now)
    assert train(other, begin=1, epochs=2) == expected[feeder.steps :]


@pytest.mark.parametrize("owner", ["none", "loader"])
def test_a_feeder_rewinds_to_an_earlier_window_and_saves_its_state_there(owner):
    seed_all(1)
    feeder = BatchFeeder(loader_of("random", "batches", owner), 2)
    passing = iter(feeder)
    next(passing)
    position, now = feeder.position.copy(), random_state()
    expected = [[batch.tolist() for batch in window] for window in passing]
    assert feeder.position.ended
    feeder.rewind(position)
    assert (feeder.position.batches, feeder.exhausted) == (2, False)
    other = BatchFeeder(loader_of("random", "batches", owner), 2)
    other.load_state_dict(feeder.state_dict())
    assert other.first_step == 1
    set_random_state(now)
    assert [[batch.tolist() for batch in window] for window in other] == expected
