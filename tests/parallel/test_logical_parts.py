"""The parts of logical ranks, in one process: the tree, what hooks see, what is rejected."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from stoker import Engine, Hook, Layout, Output, Step, Trainer, hooks
from stoker.cli.explain.sections import sections
from stoker.core.errors import NonFiniteError
from stoker.data import BatchFeeder, DataShard, total_steps
from stoker.engine import ForwardBackward, PlainSchedule
from stoker.parallel.logical.outputs import gather_rows
from stoker.parallel.logical.tree import complete_nodes, finish, is_node, ranks_of, split
from support.toys import loader, net, samples, sgd

LOGICAL = Layout(replicate=-1, logical_ranks=4)


def engine_of(model=None, **options):
    model = model or net()
    given = {"layout": LOGICAL, "device": "cpu", **options}
    return Engine(model, sgd(model), nn.CrossEntropyLoss(), **given)


# The tree


def added(values, total):
    return finish(values, total, lambda left, right: f"({left}+{right})")


@pytest.mark.parametrize("total", range(2, 18))
def test_any_number_of_processes_adds_the_same_pairs(total):
    wanted = added({(rank, rank + 1): str(rank) for rank in range(total)}, total)
    for processes in range(1, total + 1):
        held = [ranks_of(process, processes, total) for process in range(processes)]
        assert [rank for ranks in held for rank in ranks] == [*range(total)]
        nodes = {node for ranks in held for node in complete_nodes(ranks, total)}
        sums = {node: sub_tree(node) for node in nodes}
        assert added(sums, total) == wanted


def sub_tree(node):
    begin, end = node
    if end - begin == 1:
        return str(begin)
    middle = split(node)
    return f"({sub_tree((begin, middle))}+{sub_tree((middle, end))})"


def test_a_power_of_two_of_processes_holds_one_node_each():
    for processes in (1, 2, 4, 8):
        assert all(len(complete_nodes(ranks_of(p, processes, 8), 8)) == 1 for p in range(processes))
    assert is_node(4, 6, 6)
    assert not is_node(1, 3, 8)


# The arithmetic


def test_gradients_are_those_of_one_large_batch():
    model, plain = net(), net()
    Trainer(engine_of(model), []).fit(loader(20, 4), epochs=1)  # 16 samples, then 4
    optimizer = sgd(plain)
    x, y = samples(20)
    for batch in (slice(0, 16), slice(16, 20)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(x[batch]), y[batch]).backward()
        optimizer.step()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_sum_is_not_divided():
    model, plain = net(), net()
    engine = Engine(
        model, sgd(model, 0.01), nn.CrossEntropyLoss(reduction="sum"), layout=LOGICAL, device="cpu"
    )
    Trainer(engine, []).fit(loader(16, 4), epochs=1)
    x, y = samples(16)
    optimizer = sgd(plain, 0.01)
    nn.functional.cross_entropy(plain(x), y, reduction="sum").backward()
    optimizer.step()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_weight_that_only_the_step_knows_counts():
    def weighted(engine, batch):
        x, y = batch
        loss = nn.functional.cross_entropy(engine(x), y)
        return Output(loss, weight=float(y.sum() + 1))

    model, plain = net(), net()
    Trainer(engine_of(model), [], step=weighted).fit(loader(16, 4), epochs=1)
    x, y = samples(16)
    optimizer, total = sgd(plain), 0.0
    losses = []
    for rank in range(4):
        own = slice(rank, 16, 4)
        losses.append((nn.functional.cross_entropy(plain(x[own]), y[own]), float(y[own].sum() + 1)))
        total += losses[-1][1]
    sum(loss * weight / total for loss, weight in losses).backward()
    optimizer.step()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_loss_that_is_not_a_number_is_reported_for_any_logical_rank():
    x, y = samples(16)
    x[3] = float("nan")
    with pytest.raises(NonFiniteError, match="before any update"):
        Trainer(engine_of(), []).fit(DataLoader(TensorDataset(x, y), 4), epochs=1)


def test_parameters_that_no_logical_rank_uses_have_no_gradient():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = net(), net()

        def forward(self, x):
            return self.used(x)

    model = Half()
    Trainer(engine_of(model), []).fit(loader(16, 4), epochs=1)
    assert all(p.grad is None for p in model.unused.parameters())
    assert all(p.grad is not None for p in model.used.parameters())


def test_running_statistics_are_those_of_logical_rank_0():
    model, plain = net(norm=True), net(norm=True)
    Trainer(engine_of(model), []).fit(loader(16, 4), epochs=1)
    plain(samples(16)[0][0::4])
    assert torch.equal(model[1].running_mean, plain[1].running_mean)
    assert model[1].num_batches_tracked == 1


# The data


def test_logical_ranks_read_every_sample_once_without_padding():
    read = []
    for first, count in ((0, 3), (3, 2), (5, 1)):
        feeder = BatchFeeder(DataLoader(range(27), 2), 2, shard=DataShard(first, 6, count))
        windows = [[batch.tolist() for batch in window] for window in feeder]
        assert len(windows) == feeder.steps == 2
        read += [index for window in windows for batch in window for index in batch]
    assert sorted(read) == [*range(27)]
    assert total_steps(DataLoader(range(27), 2), epochs=3, accumulate=2, logical_ranks=6) == 6


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(27))


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        [torch.arange(i, min(i + 2, 27)) for i in range(0, 27, 2)],
        DataLoader(Stream(), 2),
        DataLoader(range(27), batch_sampler=[[*range(27)][i : i + 2] for i in range(0, 27, 2)]),
    ],
)
def test_batches_of_other_loaders_are_dealt_to_the_logical_ranks(data, drop):
    read = []
    for first, count in ((0, 3), (3, 2), (5, 1)):
        last = "drop" if drop else "flush"
        feeder = BatchFeeder(data, 2, shard=DataShard(first, 6, count), last_window=last)
        windows, sizes = [], []
        for window in feeder:
            windows.append([batch.tolist() for batch in window])
            sizes.append((feeder.rounds, feeder.global_size([])))
        read.append([index for window in windows for batch in window for index in batch])
        assert sizes == [(range(2), 24)] + [(range(2, 3), 3)] * (not drop)
    assert sorted(read[0] + read[1] + read[2]) == [*range(24 if drop else 27)]
    assert read[2] == [10, 11, 22, 23]


def test_a_distributed_sampler_is_rejected():
    data = DataLoader(range(8), sampler=DistributedSampler(range(8), 2, 0))
    with pytest.raises(ValueError, match="has a DistributedSampler for 2 processes"):
        Trainer(engine_of(), []).fit(data, epochs=1)


# Hooks


class Reader(Hook):
    reads_outputs = ("train",)

    def __init__(self):
        self.seen = []

    def after_step(self, run):
        self.seen.append([(len(o.outputs), o.weight) for o in run.outputs])


def test_a_hook_sees_the_outputs_of_all_logical_ranks():
    reader = Reader()
    Trainer(engine_of(), [reader]).fit(loader(20, 4), epochs=1)
    assert reader.seen == [[(4, 4.0)] * 4, [(1, 1.0)] * 4]


def test_outputs_that_no_hook_reads_say_how_to_get_them():
    class Unaware(Hook):
        def after_step(self, run):
            run.outputs[0].outputs.argmax()

    with pytest.raises(AttributeError, match="set reads_outputs"):
        Trainer(engine_of(), [Unaware()]).fit(loader(20, 4), epochs=1)


def test_an_evaluation_has_the_metrics_of_all_samples():
    trainer = Trainer(engine_of(), [hooks.Loss(), hooks.Metrics("accuracy")])
    plain = Trainer(engine_of(layout=None), [hooks.Loss(), hooks.Metrics("accuracy")])
    found, wanted = trainer.evaluate(loader(18, 4)), plain.evaluate(loader(18, 4))
    assert found["val/accuracy"] == wanted["val/accuracy"]
    assert found["val/loss"] == pytest.approx(wanted["val/loss"])
    x, _ = samples(18)
    torch.testing.assert_close(trainer.predict(loader(18, 4)), plain.predict(x))


# What is rejected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicate": -1, "logical_ranks": 1}, "logical_ranks must be an integer of at least 2"),
        ({"replicate": 2, "shard": -1, "logical_ranks": 8}, "replicate=-1 or shard=-1, but both"),
        ({"shard": -1, "logical_ranks": 8, "offload": True}, "offload cannot be combined with log"),
        ({"pipeline": 2, "logical_ranks": 8}, "logical_ranks cannot be combined with pipeline"),
        ({"replicate": -1, "logical_ranks": 8, "unused": True}, "unused is not needed"),
        ({"threads": 2}, "threads is an option of logical_ranks"),
    ],
)
def test_a_layout_that_cannot_keep_the_bits_is_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        Layout(**options)


def test_more_processes_than_logical_ranks_are_rejected():
    with pytest.raises(ValueError, match="logical_ranks is 4, but the run has 5 processes"):
        LOGICAL.filled(5)
    with pytest.raises(ValueError, match="set replicate=-1"):
        Layout(logical_ranks=4).filled(2)
    with pytest.raises(ValueError, match="set shard=-1"):
        Layout(shard=4, logical_ranks=4).filled(2)
    assert str(LOGICAL.filled(3)) == str(LOGICAL.filled(2)) == "4 logical ranks"


def test_a_loop_of_your_own_is_rejected():
    engine = engine_of()
    with pytest.raises(RuntimeError, match=r"only Trainer\.fit executes"):
        engine(torch.zeros(1, 4))
    with pytest.raises(RuntimeError, match=r"only Trainer\.fit executes"):
        ForwardBackward(engine)(*[(torch.zeros(2, 4), torch.zeros(2).long())] * 4)
    with torch.no_grad():
        engine(torch.zeros(1, 4))


def test_a_step_or_schedule_with_an_order_of_its_own_is_rejected():
    class Own(Step):
        def train(self, run):
            return True

    with pytest.raises(ValueError, match="both order the micro-batches"):
        Trainer(engine_of(), [], step=Own())
    with pytest.raises(ValueError, match="which LogicalSchedule orders"):
        Trainer(engine_of(), [], schedule=PlainSchedule())


def test_statistics_of_averaged_weights_are_rejected():
    data = loader(16, 4)
    with pytest.raises(ValueError, match="with logical_ranks, pass update_bn=False"):
        Trainer(engine_of(net(norm=True)), [hooks.SWA(1)]).fit(data, epochs=1)
    Trainer(engine_of(net(norm=True)), [hooks.SWA(1, update_bn=False)]).fit(data, epochs=1)
    Trainer(engine_of(), [hooks.SWA(1)]).fit(data, epochs=1)


def test_a_zero_has_the_same_sign_on_one_process():
    assert not gather_rows(torch.tensor([-0.0, 1.0]), range(2), 2).signbit().any()


def test_modules_whose_arithmetic_depends_on_processes_are_rejected():
    with pytest.raises(ValueError, match="'1' is a SyncBatchNorm"):
        engine_of(nn.SyncBatchNorm.convert_sync_batchnorm(net(norm=True)))
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Flatten(), nn.Linear(4, 3))
    data = DataLoader([(torch.tensor([1]), torch.tensor(1))] * 8, 2)
    with pytest.raises(ValueError, match="sparse gradient"):
        Trainer(engine_of(model), []).fit(data, epochs=1)


def test_explain_shows_which_process_executes_which_logical_ranks():
    found = sections(SimpleNamespace(trainer=Trainer(engine_of(), [])))
    assert found["Logical ranks: 4, threads: 1"][1:] == [
        "1            0-3",
        "2            0-1, 2-3",
        "3            0, 1, 2-3",
        "4            0, 1, 2, 3",
    ]


def test_the_threads_are_those_of_the_layout():
    before = torch.get_num_threads()
    try:
        engine = engine_of(layout=Layout(replicate=-1, logical_ranks=4, threads=2))
        assert torch.get_num_threads() == 2
        assert str(engine.layout) == "4 logical ranks of 2 threads"
    finally:
        torch.set_num_threads(before)
