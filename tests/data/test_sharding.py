"""Several shards of one loader: every sample once, in order, also after the number changes."""

import copy
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, Sampler

from stoker.core.seed import random_state, seed_all
from stoker.core.tree import batch_size
from stoker.data import BatchFeeder, DataShard, SeededDataset, unsharded
from stoker.data.feeder import val_feeders_of
from stoker.data.sharding import interleave
from support.loaders import (
    SAMPLERS,
    SIZE,
    Buckets,
    Items,
    assert_exact,
    generator,
    loader_of,
    plain,
)


def feeders(make, count, **options):
    torch.manual_seed(7)  # the seed that all ranks share
    return [BatchFeeder(make(), shard=DataShard(rank, count), **options) for rank in range(count)]


def ids(batch):
    return [int(row[0]) for row in batch.reshape(len(batch), -1)]


def in_turn(rows):
    """Return the samples of one batch of all ranks, in the order of the epoch."""
    longest = max(map(len, rows))
    return [row[at] for at in range(longest) for row in rows if at < len(row)]


def taken(ranks, *, windows=None):
    """Return the samples of all ranks, window by window, without padding batches."""
    found = []
    passes = [iter(feeder) for feeder in ranks]
    while windows is None or len(found) < windows:
        window = [next(one, None) for one in passes]
        if window[0] is None:
            assert window == [None] * len(ranks)
            break
        assert len({len(batches) for batches in window}) == 1
        real = [
            [ids(batch) for batch in batches[: len(batches) - feeder.padding]]
            for feeder, batches in zip(ranks, window, strict=True)
        ]
        rows = [
            [batches[at] for batches in real if at < len(batches)] for at in range(len(window[0]))
        ]
        samples = [sample for row in rows for sample in in_turn(row)]
        for feeder, batches in zip(ranks, window, strict=True):
            assert feeder.global_size([batch_size(batch) for batch in batches]) == len(samples)
        found.append(samples)
    return found


def joined(windows):
    return [sample for window in windows for sample in window]


def numbers(size=SIZE, **options):
    return DataLoader(torch.arange(size), **options)


@pytest.mark.row("O21")
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("size", [24, 22])
def test_a_map_style_loader_is_read_as_with_torchs_distributed_sampler(size, shuffle):
    ranks = feeders(lambda: numbers(size, batch_size=3, shuffle=shuffle), 2)
    for epoch in range(3):
        for feeder in ranks:
            feeder.epoch = epoch
            found = [window[0].tolist() for window in feeder]
            sampler = DistributedSampler(
                range(size), num_replicas=2, rank=ranks.index(feeder), shuffle=shuffle, seed=7
            )
            sampler.set_epoch(epoch)
            torchs = DataLoader(torch.arange(size), batch_size=3, sampler=sampler)
            assert found == [batch.tolist() for batch in torchs]


@pytest.mark.row("O21")
def test_a_loader_that_shards_itself_or_is_unsharded_is_left_as_it_is(caplog):
    sampler = DistributedSampler(range(SIZE), num_replicas=2, rank=1)
    mine = numbers(sampler=sampler, batch_size=4)
    feeder = BatchFeeder(mine, shard=DataShard(1, 2))
    feeder.epoch = 3
    assert joined(window[0].tolist() for window in feeder) == list(sampler)
    assert sampler.epoch == 3
    assert feeder.global_size([2]) == 4
    everything = BatchFeeder(unsharded(numbers(batch_size=4)), shard=DataShard(1, 2))
    assert joined(window[0].tolist() for window in everything) == list(range(SIZE))
    assert BatchFeeder([1, 2, 3], shard=DataShard(1, 2)).batches == 3
    assert caplog.text == ""


def test_a_batch_sampler_that_cannot_be_sharded_is_left_as_it_is_with_a_warning(caplog):
    feeder = BatchFeeder(
        DataLoader(torch.arange(SIZE), batch_sampler=Buckets()), shard=DataShard(1, 2)
    )
    assert sorted(joined(window[0].tolist() for window in feeder)) == list(range(SIZE))
    assert (
        "train_loader is not sharded between the 2 processes: each reads all of it" in caplog.text
    )


@pytest.mark.parametrize("batching", ["batches", "drop_last", "no batches", "batch_sampler"])
@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "distributed"])
def test_every_sampler_is_sharded_without_loss_and_draws_nothing(sampler, batching):
    ranks = feeders(lambda: loader_of(sampler, batching, "sampler", torch.arange(SIZE)), 3)
    before = random_state(), plain([g.get_state() for g in ranks[0].generators()])
    orders = []
    for epoch in range(2):
        rows = [[] for _ in ranks]
        for feeder, row in zip(ranks, rows, strict=True):
            feeder.epoch = epoch
            for window in feeder:
                if not feeder.padding:
                    row.append(window[0].reshape(-1).tolist())
        orders.append(in_turn_of_all(rows))
    after = random_state(), plain([g.get_state() for g in ranks[0].generators()])
    assert repr(before[0]["python"]) == repr(after[0]["python"])
    seen = len(ranks[0].loader.sampler if batching == "no batches" else orders[0])
    assert len(orders[0]) == len(orders[1]) == seen
    length = len(SAMPLERS[sampler](torch.arange(SIZE), None))
    assert seen == (length // 9 * 9 if batching == "drop_last" else length)
    if sampler in ("random", "subset", "list", "sequential", "eager") and seen == length:
        assert sorted(orders[0]) == sorted(orders[1])
        assert len(set(orders[0])) == length
    assert (orders[0] == orders[1]) == (sampler in ("list", "sequential"))


def in_turn_of_all(rows):
    found = []
    for at in range(max(map(len, rows))):
        found += in_turn([row[at] for row in rows if at < len(row)])
    return found


def test_no_data_of_other_shards_is_read():
    ranks = feeders(lambda: DataLoader(Items(), batch_size=3, shuffle=True), 2)
    for feeder in ranks:
        next(iter(feeder))
        assert len(feeder.loader.dataset.read) == 3
    for feeder in ranks:
        feeder.loader.dataset.read.clear()
        list(feeder)
    read = [feeder.loader.dataset.read for feeder in ranks]
    assert sorted(read[0] + read[1]) == list(range(SIZE))


def test_a_rank_for_which_nothing_is_left_gets_a_padding_batch():
    ranks = feeders(lambda: numbers(9, batch_size=2), 4)
    assert [feeder.steps for feeder in ranks] == [2] * 4
    seen = [[(window[0].tolist(), feeder.padding) for window in feeder] for feeder in ranks]
    assert seen[0] == [([0, 4], 0), ([8], 0)]
    assert seen[3] == [([3, 7], 0), ([8], 1)]
    assert [feeder.global_size([1]) for feeder in ranks] == [1] * 4
    tiny = feeders(lambda: numbers(1, batch_size=2), 2)
    assert [next(iter(feeder))[0].tolist() for feeder in tiny] == [[0], [0]]
    assert [feeder.padding for feeder in tiny] == [0, 1]


def test_a_padding_batch_may_end_a_window_of_several():
    ranks = feeders(lambda: numbers(9, batch_size=2), 4, accumulate=2)
    windows = [next(iter(feeder)) for feeder in ranks]
    assert [feeder.padding for feeder in ranks] == [0, 1, 1, 1]
    assert [len(window) for window in windows] == [2] * 4
    assert [
        feeder.global_size([2, size]) for feeder, size in zip(ranks, (1, 0, 1, 0), strict=True)
    ] == [9] * 4


def test_a_batch_of_another_size_than_its_indices_sets_the_ratio_for_all_ranks():
    def make():
        return DataLoader(range(8), batch_size=2, collate_fn=lambda rows: torch.zeros(5, 1))

    feeder = feeders(make, 2)[1]
    assert [feeder.global_size([batch_size(window[0])]) for window in feeder] == [10, 10]


def test_a_last_batch_that_is_not_full_everywhere_may_be_dropped():
    ranks = feeders(lambda: numbers(23, batch_size=3, drop_last=True), 2)
    assert [feeder.batches for feeder in ranks] == [3, 3]
    assert joined(taken(ranks)) == list(range(18))
    with pytest.raises(ValueError, match="do not fill one batch of 12 on each of 2 processes"):
        BatchFeeder(numbers(23, batch_size=12, drop_last=True), shard=DataShard(0, 2))


def test_limits_count_the_batches_of_one_rank():
    ranks = feeders(lambda: numbers(24, batch_size=2), 2, limit=0.5)
    assert [feeder.batches for feeder in ranks] == [3, 3]
    assert joined(taken(ranks)) == list(range(12))


def test_validation_is_sharded_in_the_same_way():
    ranks = [
        val_feeders_of(numbers(5, batch_size=2), None, DataShard(rank, 2))["val"]
        for rank in range(2)
    ]
    assert joined(taken(ranks)) == list(range(5))


OPTIONS = {
    "random": ({"shuffle": True}, {}),
    "generator": ({"shuffle": True, "generator": None}, {"accumulate": 2}),
    "drop": ({"drop_last": True, "shuffle": True}, {"accumulate": 2, "last_window": "drop"}),
    "limit": ({"shuffle": True}, {"limit": 2}),
    "no batches": ({"batch_size": None, "shuffle": True}, {"limit": 5}),
    "own sampler": ({"sampler": "subclass"}, {}),
    "weighted": ({"sampler": "weighted", "generator": None}, {}),
    "workers": ({"num_workers": 2, "shuffle": True}, {}),
    "persistent": ({"num_workers": 2, "shuffle": True, "persistent_workers": True}, {}),
}


@pytest.mark.process
@pytest.mark.row("L14")
@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("rank", [0, 2])
def test_a_shard_is_resumed_exactly(case, rank):
    loader, options = OPTIONS[case]

    def make():
        given = {"batch_size": 3, **loader}
        data = Items()
        if "num_workers" in given:
            given["multiprocessing_context"] = "fork"
            data = SeededDataset(data, seed=4)
        if "generator" in given:
            given["generator"] = generator()
        if "sampler" in given:
            given["sampler"] = SAMPLERS[given["sampler"]](data, None)
        return BatchFeeder(DataLoader(data, **given), shard=DataShard(rank, 3), **options)

    assert_exact(make, every=2)


@pytest.mark.row("L14")
def test_samples_per_rank_are_the_same_after_a_resume_in_mid_epoch():
    def make():
        return DataLoader(Items(), batch_size=2, shuffle=True)

    uninterrupted = feeders(make, 2)
    states, expected = [], []
    for feeder in uninterrupted:
        feeder.epoch = 4
        passing = iter(feeder)
        next(passing), next(passing)
        states.append(copy.deepcopy(feeder.state_dict()))
        expected.append([ids(window[0]) for window in passing])
    torch.manual_seed(99)  # another process, which was seeded otherwise
    again = [BatchFeeder(make(), shard=DataShard(rank, 2)) for rank in range(2)]
    for feeder, state, rest in zip(again, states, expected, strict=True):
        feeder.load_state_dict(state)
        assert [ids(window[0]) for window in feeder] == rest
        feeder.epoch = 5
    for feeder in uninterrupted:
        feeder.epoch = 5
    assert taken(again) == taken(uninterrupted)


def resized(ranks, make, count, **options):
    """Return feeders of ``count`` ranks that resume the position of rank 0."""
    state = copy.deepcopy(ranks[0].state_dict())
    torch.manual_seed(99 + count)
    new = [BatchFeeder(make(), shard=DataShard(rank, count), **options) for rank in range(count)]
    for feeder in new:
        feeder.load_state_dict(copy.deepcopy(state))
        assert plain(feeder.state_dict()) == plain(new[0].state_dict())
    return new


def epoch_of(ranks, number):
    for feeder in ranks:
        feeder.epoch = number
    return ranks


def test_resize_from_4_to_2_to_3_reads_every_sample_of_the_epoch_once_and_in_order():
    def make():
        return DataLoader(torch.arange(101), batch_size=3, shuffle=True)

    four = epoch_of(feeders(make, 4), 2)
    order = joined(taken(four))
    seen = taken(four, windows=3)
    two = resized(four, make, 2)
    assert [two[0].position.batches, two[0].batches, two[0].steps] == [3, 3 + 11, 14]
    seen += taken(two, windows=4)
    assert not two[0].exhausted
    three = resized(two, make, 3)
    assert [three[0].position.batches, three[0].batches] == [7, 7 + 5]
    seen += taken(three)
    assert three[0].exhausted
    assert joined(seen) == order
    assert Counter(joined(seen)) == Counter(range(101))
    following = joined(taken(epoch_of(three, 3)))
    assert [three[0].batches, sorted(following)] == [12, list(range(101))]
    assert following == joined(taken(epoch_of(four, 3)))


@pytest.mark.parametrize("owner", ["none", "loader", "sampler"])
@pytest.mark.parametrize("batching", ["batches", "no batches", "batch_sampler"])
@pytest.mark.parametrize("sampler", ["random", "subclass", "eager", "subset", "replacement"])
def test_resize_from_one_process_keeps_the_order_it_drew(sampler, batching, owner):
    def make():
        return loader_of(sampler, batching, owner, torch.arange(SIZE))

    seed_all(3)
    alone = BatchFeeder(make())
    order = [window[0].reshape(-1).tolist() for window in alone]
    seed_all(3)
    alone = BatchFeeder(make())
    passing = iter(alone)
    seen = [next(passing)[0].reshape(-1).tolist() for _ in range(2)]
    two = resized([alone], make, 2)
    passing = [iter(feeder) for feeder in two]
    seen += [in_turn([next(one)[0].reshape(-1).tolist() for one in passing])]
    for feeder in resized(two, make, 1):
        seen += [window[0].reshape(-1).tolist() for window in feeder]
    assert joined(seen) == joined(order)


def test_resize_to_one_process_completes_the_sharded_pass_and_is_plain_afterwards():
    def make():
        return numbers(31, batch_size=2, shuffle=True)

    two = epoch_of(feeders(make, 2), 1)
    order = joined(taken(two))
    seen = taken(two, windows=3)
    alone = resized(two, make, 1)[0]
    passing = iter(alone)
    seen += [next(passing)[0].tolist() for _ in range(2)]
    three = resized([alone], make, 3)
    seen += taken(three, windows=1)
    alone = resized(three, make, 1)[0]
    seen += taken([alone])
    assert joined(seen) == order
    assert alone.exhausted
    state = alone.state_dict()
    seed_all(5)
    following = [window[0].tolist() for window in alone]
    assert [alone.batches, len(following)] == [16, 16]
    seed_all(5)
    assert following == [batch.tolist() for batch in make()]
    fresh = BatchFeeder(make())
    fresh.load_state_dict(state)
    seed_all(5)
    assert following == [window[0].tolist() for window in fresh]


def test_resize_may_change_the_batch_size_too(caplog):
    two = feeders(lambda: numbers(40, batch_size=4), 2)
    seen = taken(two, windows=2)
    seen += taken(resized(two, lambda: numbers(40, batch_size=5), 3))
    assert joined(seen) == list(range(40))
    assert "batch_size was 4, is 5" in caplog.text
    with pytest.raises(ValueError, match="samples was 40, is 41"):
        resized(two, lambda: numbers(41, batch_size=4), 2)


def test_resize_of_a_loader_that_each_process_reads_itself_logs_the_consequence(caplog):
    two = [
        BatchFeeder([torch.tensor([n]) for n in range(6)], shard=DataShard(rank, 2))
        for rank in range(2)
    ]
    next(iter(two[0]))
    resized(two, lambda: [torch.tensor([n]) for n in range(6)], 3)
    assert "the number of processes changed from 2 to 3: some samples of this epoch" in caplog.text


def test_a_state_saved_between_passes_replaces_a_resharded_pass():
    def make():
        return numbers(40, batch_size=2)

    four = feeders(make, 4)
    between = copy.deepcopy(four[0].state_dict())
    taken(four, windows=3)
    two = resized(four, make, 2)
    assert [feeder.batches for feeder in two] == [3 + 4] * 2
    for feeder in two:
        feeder.load_state_dict(copy.deepcopy(between))
    assert [(feeder.batches, feeder.first_step) for feeder in two] == [(10, 0)] * 2
    assert joined(taken(two)) == list(range(40))


class ByEpoch(Sampler):
    """An order that depends on the epoch only."""

    def __init__(self, size):
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([(n + self.epoch) % self.size for n in range(self.size)])

    def __len__(self):
        return self.size


def test_resize_of_a_sampler_with_set_epoch_keeps_its_order():
    def make():
        return numbers(12, batch_size=1, sampler=ByEpoch(12))

    two = epoch_of(feeders(make, 2), 5)
    seen = taken(two, windows=2) + taken(resized(two, make, 3))
    assert joined(seen) == [*range(5, 12), *range(5)]


@pytest.mark.slow
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_resize_anywhere_loses_and_repeats_no_sample(data):
    size, epoch = data.draw(st.integers(1, 60)), data.draw(st.integers(0, 3))
    options = {"accumulate": data.draw(st.integers(1, 3))}
    drop, shuffle = data.draw(st.booleans()), data.draw(st.booleans())
    counts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    largest = size // max(counts) if drop else 7
    if largest < 1:
        return
    sizes = st.integers(1, min(7, largest))

    def maker(batch):
        return lambda: numbers(size, batch_size=batch, drop_last=drop, shuffle=shuffle)

    make = maker(data.draw(sizes))
    ranks = epoch_of(feeders(make, counts[0], **options), epoch)
    seen, sharded, over = [], counts[0] > 1, False
    for count in counts[1:]:
        steps = data.draw(st.integers(0, 4))
        if steps:
            seen += taken(ranks, windows=steps)
        over = bool(steps) and ranks[0].exhausted
        if over:
            break
        sharded = count > 1 or (sharded and bool(seen))
        make = maker(data.draw(sizes)) if sharded else make
        ranks = epoch_of(resized(ranks, make, count, **options), epoch)
    seen += [] if over else taken(ranks)
    batch = ranks[0].loader.batch_size * len(ranks)
    found = joined(seen)
    assert ranks[0].exhausted
    assert len(set(found)) == len(found)
    assert size - len(found) < (batch if drop else 1)
    assert shuffle or found == list(range(len(found)))
    following = joined(taken(epoch_of(ranks, epoch + 1)))
    assert len(following) == len(set(following)) == (size // batch * batch if drop else size)


def test_outputs_of_all_ranks_are_merged_in_the_order_of_the_data():
    ranks = feeders(lambda: numbers(11, batch_size=2), 3)
    outputs = [
        [{"x": w[0] * 10.0, "pair": (w[0], w[0])} for w in feeder if not feeder.padding]
        for feeder in ranks
    ]
    assert [len(windows) for windows in outputs] == [2, 2, 2]
    found = interleave(outputs)
    assert torch.cat([window["x"] for window in found]).tolist() == [10.0 * n for n in range(11)]
    assert ranks[0].interleave(outputs)[1]["pair"][1].tolist() == [6, 7, 8, 9, 10]
    padded = feeders(lambda: numbers(7, batch_size=2), 3)
    outputs = [[w[0] for w in feeder if not feeder.padding] for feeder in padded]
    assert [len(windows) for windows in outputs] == [2, 1, 1]
    assert torch.cat(interleave(outputs)).tolist() == list(range(7))
    single = feeders(lambda: DataLoader(torch.arange(10).view(5, 2), batch_size=None), 2)
    outputs = [[w[0] for w in feeder if not feeder.padding] for feeder in single]
    assert torch.cat(single[0].interleave(outputs)).tolist() == list(range(10))


def test_the_rank_of_a_shard_is_below_its_world_size():
    with pytest.raises(ValueError, match="rank of a shard must be from 0 to 1, got 2"):
        DataShard(2, 2)


def test_a_single_process_saves_its_position_and_the_random_state_of_its_start():
    feeder = BatchFeeder(DataLoader(Items(), 3, shuffle=True))
    next(iter(feeder))
    state = feeder.state_dict()
    assert set(state) == {"position", "loader", "generators", "workers_running"}
    assert set(state["position"]) == {"batches", "padding", "drained", "abandoned", "start"}
    assert set(state["position"]["start"]) == {"global", "generators", "workers_running"}
    assert feeder.state_dict()["loader"]["kind"] == "map-style"
    assert feeder.global_size([3]) == 3
    assert feeder.padding == 0


def test_a_given_batch_sampler_is_sharded_by_its_sampler():
    def make():
        data = torch.arange(SIZE)
        return DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 3, True))

    ranks = feeders(make, 2)
    assert len(set(joined(taken(ranks)))) == 18
