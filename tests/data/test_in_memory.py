"""In-memory data is gathered with the bits, the order and the draws of a DataLoader."""

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
)
from torch.utils.data._utils import collate

from stoker import hooks
from stoker.core.seed import seed_all, set_random_state
from stoker.data import BatchFeeder, DataShard, by_sample, loader
from stoker.data.dataloader import generators_of
from stoker.data.in_memory import batches_of
from support.loaders import BATCHING, SAMPLERS, SIZE, assert_exact, loader_of, train
from support.pool import pool
from support.tasks import data as data_tasks
from support.toys import net, same_bits, samples, trainer, weights


def gathers(one: DataLoader) -> bool:
    return isinstance(batches_of(one), map)


def form(batch):
    """Return types, shapes, strides and bits of a batch."""
    if isinstance(batch, Tensor):
        bits = batch.contiguous().flatten().view(torch.uint8) if batch.numel() else batch
        return type(batch), batch.dtype, batch.shape, batch.stride(), bits.tolist()
    if isinstance(batch, dict):
        return type(batch), {name: form(column) for name, column in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch), [form(column) for column in batch]
    return type(batch), batch


def read(batches: Callable[[], object], own: DataLoader | None = None):
    """Return the batches of two passes, and the generators after each batch."""
    seed_all(3)
    seen = []
    for _ in range(2):
        for batch in batches():
            states = [g.get_state() for g in (torch.default_generator, *generators_of(own))]
            seen.append((form(batch), [hash(state.numpy().tobytes()) for state in states]))
        seen.append(torch.rand(()).item())
    return seen


def windows(feeder: BatchFeeder):
    return (window[0] for window in feeder)


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def tensor_of(size: int, dtype: torch.dtype, shape: tuple[int, ...] = ()) -> Tensor:
    values = torch.rand(size, *shape, generator=torch.Generator().manual_seed(size)) * 9
    return values.to(dtype)


@st.composite
def loader_factories(draw) -> Callable[[], DataLoader]:
    """A function that builds a plain DataLoader over tensors, as a script does when it starts."""
    size, dtype = draw(st.integers(1, 40)), draw(st.sampled_from(DTYPES))
    shape = draw(st.sampled_from([(), (3,), (1,), (2, 1, 2), (1, 4, 4)]))
    x, y = tensor_of(size, dtype, shape), torch.arange(size)
    subset = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=30))
    data = draw(
        st.sampled_from(
            [
                TensorDataset(x, y),
                TensorDataset(x),
                x,
                StackDataset(a=x, b=TensorDataset(y, x)),
                StackDataset((x, y)[0], y),
                Subset(TensorDataset(x, y), subset),
                Subset(Subset(x, subset), range(len(subset))),
                Subset(TensorDataset(x, y), torch.tensor(subset)),
            ]
        )
    )
    batch, drop, shuffle = draw(st.integers(1, 12)), draw(st.booleans()), draw(st.booleans())
    owner = draw(st.sampled_from(["none", "loader", "sampler"]))

    def make() -> DataLoader:
        generator = None if owner == "none" else torch.Generator().manual_seed(5)
        if owner != "sampler":
            return DataLoader(data, batch, shuffle, drop_last=drop, generator=generator)
        sampler = RandomSampler(data, replacement=shuffle, num_samples=33, generator=generator)
        return DataLoader(data, batch_sampler=BatchSampler(sampler, batch, drop))

    return make


@pytest.mark.slow
@given(loader_factories())
@settings(max_examples=200, deadline=None)
def test_batches_are_those_of_the_dataloader_with_its_draws(make):
    assert gathers(make())
    one, fast, fed = make(), make(), make()
    expected = read(lambda: one, one)
    assert read(lambda: batches_of(fast), fast) == expected
    if len(fed):
        feeder = BatchFeeder(fed)
        assert read(lambda: windows(feeder), fed) == expected


@pytest.mark.slow
@given(loader_factories(), st.data())
@settings(max_examples=30, deadline=None)
def test_ranks_read_the_same_shards_as_without_gathering(make, data):
    if len(make()) == 0:
        return
    count = data.draw(st.integers(2, 4))
    shard = DataShard(data.draw(st.integers(0, count - 1)), count)
    try:
        fast, slow = BatchFeeder(make(), shard=shard), BatchFeeder(by_sample(make()), shard=shard)
    except ValueError:  # it leaves no batch on each of so many
        return
    assert read(lambda: windows(fast)) == read(lambda: windows(slow))


ARRAYS = {
    name: np.arange(60).reshape(20, 3).astype(name)
    for name in ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool")
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_have_the_types_that_stacking_yields(name):
    array = ARRAYS[name]
    for data in (array, array[:, 0], array[:, 0] * array.dtype.type(0.3), array[::2]):
        slow = DataLoader(data, 3, shuffle=True)
        fast = loader(data, 3, shuffle=True)
        assert gathers(slow)
        assert read(lambda fast=fast: fast) == read(lambda slow=slow: slow)
        assert read(lambda slow=slow: batches_of(slow)) == read(lambda slow=slow: slow)


def test_odd_arrays_and_tensors_are_left_to_torch():
    backwards = np.arange(12.0).reshape(4, 3)[:, ::-1]
    assert not gathers(DataLoader(backwards, 2))
    with pytest.raises(ValueError, match="negative"):
        list(batches_of(DataLoader(backwards, 2)))
    for nothing in (np.zeros((4, 0)), torch.zeros(4, 0)):
        one = DataLoader(nothing, 2)
        assert read(lambda one=one: batches_of(one)) == read(lambda one=one: one)
    foreign = np.arange(4.0).astype(">f8")
    assert read(lambda: batches_of(DataLoader(foreign, 2))) == read(lambda: DataLoader(foreign, 2))
    channels_last = torch.rand(6, 3, 4, 4).to(memory_format=torch.channels_last)
    one = DataLoader(channels_last, 2)
    assert read(lambda: batches_of(one)) == read(lambda: one)
    learned = torch.rand(6, 3, requires_grad=True)
    assert next(batches_of(DataLoader(learned, 2))).requires_grad
    assert not gathers(DataLoader(learned, 2))
    assert not gathers(DataLoader(torch.rand(6, 2).to_sparse(), 2))


@pytest.mark.slow
def test_a_device_other_than_the_cpu_is_gathered_there():
    one = DataLoader(TensorDataset(torch.empty(6, 3, device="meta")), 4)
    assert gathers(one)
    assert [[x.shape for x in batch] for batch in batches_of(one)] == [[(4, 3)], [(2, 3)]]


def test_a_memory_map_is_gathered(tmp_path):
    array = np.memmap(tmp_path / "rows", "float32", "w+", shape=(10, 4))
    array[:] = np.random.default_rng(0).random((10, 4))
    one = loader((array, torch.arange(10)), 3, shuffle=True)
    plain = DataLoader(StackDataset(array, torch.arange(10)), 3, shuffle=True)
    assert gathers(one)
    assert read(lambda: one) == read(lambda: plain)


class Doubled(TensorDataset):
    """Transforms each sample."""

    def __getitem__(self, index):
        return tuple(2 * value for value in super().__getitem__(index))


class Shouting(Subset):
    def __getitems__(self, indices):
        return [2 * self.dataset[self.indices[index]] for index in indices]


class OwnLoader(DataLoader):
    pass


def padded(samples):
    return default_collate(samples)


def test_datasets_and_loaders_with_custom_behaviour_are_never_gathered():
    x = torch.rand(6, 3)
    for one in (
        DataLoader(Doubled(x), 2),
        DataLoader(Subset(Doubled(x), [1, 2, 5]), 2),
        DataLoader(StackDataset(Doubled(x), x), 2),
        DataLoader(Shouting(x, [1, 2, 5]), 2),
        DataLoader(TensorDataset(x), 2, collate_fn=padded),
        DataLoader(list(x), 2),
        DataLoader(TensorDataset(x), batch_size=None),
        OwnLoader(TensorDataset(x), 2),
        by_sample(DataLoader(TensorDataset(x), 2)),
    ):
        assert not gathers(one)
        assert read(lambda one=one: batches_of(one)) == read(lambda one=one: one)
    doubled = [batch[0] for batch in windows(BatchFeeder(DataLoader(Doubled(x), 2)))]
    assert torch.equal(torch.cat(doubled), 2 * x)


def test_a_replaced_collate_function_is_respected(monkeypatch):
    sums = {**collate.default_collate_fn_map, Tensor: lambda batch, **_: sum(batch)}
    one = DataLoader(torch.rand(6, 3), 2)
    assert gathers(one)
    monkeypatch.setattr(collate, "default_collate_fn_map", sums)
    assert not gathers(one)


@pytest.mark.process
def test_workers_read_sample_by_sample():
    assert not gathers(DataLoader(TensorDataset(torch.rand(6, 3)), 2, num_workers=1))


class Odd:
    """Yields unusual indices."""

    def __init__(self, *batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def test_indices_of_any_kind_mean_what_they_mean_to_torch():
    x, y = torch.rand(6, 3), np.arange(6.0)
    odd = Odd([-1, 0], [torch.tensor(3), 1], [np.int64(2)], (4, 5), [True, True])
    for data in (x, y, TensorDataset(x), Subset(x, [5, -2, 1, 0, 3, 4])):
        one = DataLoader(data, batch_sampler=odd)
        assert read(lambda one=one: batches_of(one)) == read(lambda one=one: one)
    with pytest.raises(IndexError, match="out of bounds for dimension 0 with size 6"):
        list(batches_of(DataLoader(x, batch_sampler=Odd([0, 6]))))


def test_a_batch_is_a_copy_of_the_data():
    x = torch.zeros(4, 2)
    for batch in batches_of(DataLoader(x, 4)):
        batch.add_(1)
    for batch in loader(x, 2):
        batch.add_(1)
    assert not x.any()


def test_data_that_changes_between_passes_is_seen():
    data = TensorDataset(torch.zeros(4))
    feeder = BatchFeeder(DataLoader(data, 4))
    assert [w.tolist() for [w] in windows(feeder)] == [[0.0] * 4]
    data.tensors[0].fill_(1)
    assert [w.tolist() for [w] in windows(feeder)] == [[1.0] * 4]
    data.tensors = (torch.full((4,), 2.0),)
    assert [w.tolist() for [w] in windows(feeder)] == [[2.0] * 4]


@pytest.mark.parametrize("owner", ["none", "loader", "sampler"])
@pytest.mark.parametrize("batching", [name for name in BATCHING if name != "no batches"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_step_is_resumed_exactly(sampler, batching, owner):
    numbers = torch.arange(float(SIZE))
    assert gathers(loader_of(sampler, batching, owner, numbers))
    assert_exact(
        lambda: BatchFeeder(loader_of(sampler, batching, owner, numbers)), every=7, epochs=2
    )


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_state_saved_without_gathering_resumes_with_it_and_vice_versa(sampler):
    def make(*, fast: bool) -> BatchFeeder:
        one = loader_of(sampler, "batches", "loader", torch.arange(float(SIZE)))
        return BatchFeeder(one if fast else by_sample(one))

    runs = {}
    for fast in (True, False):
        saves = []
        seed_all(1)
        runs[fast] = train(make(fast=fast), saves=saves), saves
    assert runs[True][0] == runs[False][0]
    for fast, (expected, saves) in runs.items():
        for save in saves[::3]:
            feeder = make(fast=not fast)
            feeder.load_state_dict(copy.deepcopy(save.feeder))
            set_random_state(save.random)
            assert train(feeder, begin=save.epoch) == expected[save.step :]


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_a_run_killed_with_gathering_ends_at_the_same_weights_without_it_and_vice_versa(
    first, tmp_path
):
    def fit(folder, *, fast, die=False):
        def fail(run):
            if die and run.step == 8:
                raise ZeroDivisionError

        seed_all(0)
        data = DataLoader(TensorDataset(*samples(22)), 4, shuffle=True)
        stock = [hooks.Checkpoint("1st"), hooks.Callback(after_step=fail)]
        one = trainer(*stock, model=net(dropout=True), run_dir=tmp_path / folder)
        one.fit(data if fast else by_sample(data), epochs=3)
        return weights(one.engine.model)

    expected = fit("expected", fast=first)
    with pytest.raises(ZeroDivisionError):
        fit("run", fast=first, die=True)
    assert same_bits(expected, fit("run", fast=not first))


@pytest.mark.process
def test_two_processes_gather_their_shards():
    fast, slow = pool().run(2, data_tasks.gathered, False), pool().run(2, data_tasks.gathered, True)
    assert fast == slow
    assert fast[0] != fast[1]


def test_a_loader_takes_columns_as_tuples_and_dicts():
    x, y = torch.rand(10, 3), np.arange(10)
    pairs = read(lambda: DataLoader(StackDataset(x, y), 4, shuffle=True))
    assert read(lambda: loader((x, y), 4, shuffle=True)) == pairs
    assert read(lambda: batches_of(loader((x, y), 4, shuffle=True))) == pairs
    named = next(iter(loader({"ids": x, "labels": y}, 4)))
    assert form(named) == form({"ids": x[:4], "labels": torch.from_numpy(y[:4])})
    nested = next(iter(loader(((x, x), y), 4)))
    assert form(nested) == form([[x[:4], x[:4]], torch.from_numpy(y[:4])])


def test_a_loader_of_columns_takes_the_options_of_a_dataloader():
    x, y = torch.rand(10, 3), torch.arange(10)

    def both(**options):
        fast = read(lambda: loader((x, y), **options))
        assert fast == read(lambda: DataLoader(TensorDataset(x, y), **options))

    both()
    both(batch_size=3, drop_last=True)
    both(batch_size=3, sampler=RandomSampler(x))
    both(batch_sampler=BatchSampler(range(7), 2, False))
    both(batch_size=4, collate_fn=len)
    both(batch_size=None)
    with pytest.raises(TypeError, match="bach_size"):
        loader((x, y), bach_size=4)


@pytest.mark.process
def test_a_loader_with_workers_yields_the_same():
    x = torch.rand(6, 3)
    with_workers = loader((x, torch.arange(6)), 4, num_workers=1)
    assert [form(batch) for batch in with_workers] == [
        form(b) for b in loader((x, torch.arange(6)), 4)
    ]


def test_a_loader_of_anything_else_is_a_plain_one():
    class Words(Dataset):
        def __getitem__(self, index):
            return "abc"[index]

        def __len__(self):
            return 3

    assert list(loader(Words(), 2)) == [["a", "b"], ["c"]]
    assert [batch.tolist() for batch in loader([1, 2, 3], 2)] == [[1, 2], [3]]
    assert type(loader(Words(), 2)) is DataLoader


def test_columns_of_different_lengths_are_rejected():
    with pytest.raises(ValueError, match="'a' has 4, 'b' has 3"):
        loader({"a": torch.zeros(4), "b": np.zeros(3)}, 2)


def test_by_sample_rejects_a_loader_that_gathers():
    with pytest.raises(ValueError, match=r"built by stoker.data.loader"):
        by_sample(loader(torch.zeros(4), 2))
    assert by_sample([1, 2]) == [1, 2]


def test_a_loader_can_be_pickled_and_copied():
    one = loader((torch.rand(6, 3), torch.arange(6)), 4)
    for other in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
        assert gathers(other)
        assert read(lambda other=other: other) == read(lambda: one)


def test_pinned_memory_is_requested_as_by_torch():
    one = DataLoader(TensorDataset(torch.arange(6.0)), 4, pin_memory=True)
    with pytest.warns(UserWarning, match="pin_memory"):
        found = read(lambda: batches_of(one))
    assert found == read(lambda: DataLoader(TensorDataset(torch.arange(6.0)), 4))
