"""Loaders with their own state, loaders that are replayed, and loaders that have changed."""

import random
import weakref
from collections.abc import Sequence

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler

from stoker.core.seed import seed_all, set_random_state
from stoker.data import BatchFeeder, SeededDataset
from stoker.data.resume import strategies
from support.loaders import SIZE, Items, assert_exact, generator, loader_of, train


class Stream(IterableDataset):
    """Numbers whose order and noise are drawn while they are read."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self):
        order = list(range(SIZE))
        random.shuffle(order)
        for number in order:
            self.read += 1
            yield torch.tensor([float(number), torch.rand(()).item()], dtype=torch.float64)


class Quiet(IterableDataset):
    """Draws its order at the beginning and nothing afterwards."""

    def __iter__(self):
        yield from torch.randperm(SIZE).double()


class Resumable(IterableDataset):
    """Keeps its position."""

    def __init__(self) -> None:
        self.next = 0
        self.read: list[int] = []

    def __iter__(self):
        while self.next < SIZE:
            self.next += 1
            self.read.append(self.next)
            yield torch.tensor([self.next, torch.rand(()).item()], dtype=torch.float64)
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def test_a_stream_is_replayed_with_the_generators_of_its_start(caplog):
    assert_exact(lambda: BatchFeeder(DataLoader(Quiet(), 3)))
    assert "train_loader cannot skip batches: reading and discarding the first 3 (" in caplog.text


def test_a_stream_that_keeps_drawing_resumes_with_the_current_generators():
    seed_all(1)
    saves = []
    expected = train(
        BatchFeeder(DataLoader(Stream(), 3, generator=generator())), epochs=1, saves=saves
    )
    feeder = BatchFeeder(DataLoader(Stream(), 3, generator=generator()))
    feeder.load_state_dict(saves[3].feeder)
    set_random_state(saves[3].random)
    rest = train(feeder, epochs=1)
    assert rest == expected[4:]
    assert feeder.loader.dataset.read == SIZE


def test_a_long_replay_logs_its_progress(caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setattr(strategies, "_LOG_INTERVAL", -1.0)
    feeder = BatchFeeder(DataLoader(Stream()))
    passing = iter(feeder)
    for _ in range(3):
        next(passing)
    other = BatchFeeder(DataLoader(Stream()))
    other.load_state_dict(feeder.state_dict())
    next(iter(other))
    assert "train_loader: 2 of 3 batches discarded" in caplog.text


def test_a_stream_that_has_become_shorter_is_rejected():
    feeder = BatchFeeder(iter(range(9)))
    passing = iter(feeder)
    for _ in range(5):
        next(passing)
    other = BatchFeeder(iter(range(3)))
    other.load_state_dict(feeder.state_dict())
    with pytest.raises(ValueError, match="ended after 3 batches, but 5 had been read when the"):
        next(iter(other))


def test_a_stream_with_a_state_is_not_replayed():
    saves = assert_exact(lambda: BatchFeeder(DataLoader(Resumable(), 3)))
    feeder = BatchFeeder(DataLoader(Resumable(), 3))
    feeder.load_state_dict(saves[2].feeder)
    next(iter(feeder))
    assert feeder.loader.dataset.read == [10, 11, 12]


def test_the_state_of_a_loader_is_read_only_for_a_state_dict():
    class Mine:
        calls = 0

        def __init__(self) -> None:
            self.position = 0

        def __iter__(self):
            while self.position < 7:
                self.position += 1
                yield torch.tensor([float(self.position)])
            self.position = 0

        def state_dict(self):
            Mine.calls += 1
            return {"position": self.position}

        def load_state_dict(self, state):
            self.position = state["position"]

    list(BatchFeeder(Mine()))
    assert Mine.calls == 0
    assert_exact(lambda: BatchFeeder(Mine(), 2))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("given", [True, False])
def test_torchdata_keeps_its_position_and_training_its_random_numbers(given):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make() -> BatchFeeder:
        torch.manual_seed(3)  # its sampler is seeded when it is built
        g = generator() if given else None
        return BatchFeeder(stateful.StatefulDataLoader(Items(), 3, shuffle=True, generator=g))

    seed_all(1)
    feeder = make()
    seed_all(1)
    saves = []
    expected = train(feeder, saves=saves)
    for save in saves:
        other = make()
        other.load_state_dict(save.feeder)
        set_random_state(save.random)
        assert train(other, begin=save.epoch) == expected[save.step :], save[:2]


def test_a_sequence_with_a_custom_iter_is_iterated():
    class Shuffled(Sequence):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            raise AssertionError

        def __iter__(self):
            return iter(torch.randperm(8).float().split(1))

    assert_exact(lambda: BatchFeeder(Shuffled()))


def test_a_loader_with_a_custom_iter_is_iterated():
    class Doubled(DataLoader):
        def __iter__(self):
            for batch in super().__iter__():
                yield batch * 2

    assert_exact(lambda: BatchFeeder(Doubled(torch.arange(20.0), 3, shuffle=True)))


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (lambda: DataLoader(Items(), 5, shuffle=True), "batch_size was 3, is 5"),
        (lambda: DataLoader(Items(21), 3, shuffle=True), "samples was 20, is 21"),
        (lambda: DataLoader(Items(40), 3, shuffle=True), "batches was 7, is 14"),
        (
            lambda: DataLoader(Items(), 3),
            "sampler was BatchSampler of RandomSampler, is BatchSampler of SequentialSampler",
        ),
        (
            lambda: DataLoader(Items(), 3, shuffle=True, generator=generator()),
            "generators was 0, is 1",
        ),
        (lambda: [1.0, 2.0], "kind was map-style, is sequence"),
    ],
)
def test_a_changed_loader_is_rejected_within_a_pass_and_logged_between_passes(
    changed, text, caplog
):
    feeder = BatchFeeder(DataLoader(Items(), 3, shuffle=True))
    passing = iter(feeder)
    next(passing)
    state = feeder.state_dict()
    with pytest.raises(ValueError, match=f"train_loader has changed since .*{text}"):
        BatchFeeder(changed()).load_state_dict(state)
    list(passing)
    BatchFeeder(changed()).load_state_dict(feeder.state_dict())
    assert text in caplog.text


def test_another_number_of_workers_is_rejected_if_it_changes_the_samples():
    feeder = BatchFeeder(DataLoader(Stream(), 3))
    next(iter(feeder))
    with pytest.raises(ValueError, match="num_workers was 0, is 2; expected the same loader"):
        BatchFeeder(DataLoader(Stream(), 3, num_workers=2)).load_state_dict(feeder.state_dict())


def test_the_epoch_is_set_on_every_component_with_set_epoch():
    data = SeededDataset(Items())
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    feeder = BatchFeeder(DataLoader(data, 4, sampler=sampler))
    list(feeder)
    assert sampler.epoch == data.epoch == 0
    feeder.epoch = 7
    passing = iter(feeder)
    next(passing)
    assert sampler.epoch == data.epoch == 7
    other = BatchFeeder(DataLoader(data, 4, sampler=sampler))
    assert other.epoch is None
    other.load_state_dict(feeder.state_dict())
    assert other.epoch == 7


def test_generators_of_a_given_batch_sampler_are_known():
    g = generator()
    inner = RandomSampler(Items(), generator=g)
    loader = loader_of("random", "batch_sampler", "none")
    loader.batch_sampler.sampler = inner
    assert BatchFeeder(loader).generators() == [g]


def test_a_feeder_is_in_no_reference_cycle():
    feeder = BatchFeeder(DataLoader(Items(), 4))
    list(feeder)
    reference = weakref.ref(feeder)
    del feeder
    assert reference() is None
