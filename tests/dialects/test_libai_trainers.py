"""LiBai trainers as its users write them, its data, its files, and its command line."""

import itertools
import logging
import os

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker.core.errors import UnsupportedURLError
from stoker.dialects.libai.config import LazyCall, LazyConfig, try_get_key
from stoker.dialects.libai.data import (
    DistTensorData,
    Instance,
    build_image_test_loader,
    build_image_train_loader,
    build_nlp_train_val_test_loader,
)
from stoker.dialects.libai.data.samplers import CyclicSampler, SingleRoundSampler
from stoker.dialects.libai.engine import (
    DefaultTrainer,
    EagerTrainer,
    HookBase,
    TrainerBase,
    default_setup,
    hooks,
)
from stoker.dialects.libai.evaluation.evaluator import DatasetEvaluator, inference_on_dataset
from stoker.dialects.libai.models.utils import GraphBase
from stoker.dialects.libai.utils.checkpoint import Checkpointer
from stoker.dialects.libai.utils.events import EventStorage, get_event_storage
from stoker.dialects.libai.utils.file_io import LazyPath, PathManagerBase
from support.pool import pool
from support.tasks.libai import (
    Digits,
    Losses,
    Net,
    Stop,
    config,
    flags,
    printed_in_ranks,
    trained,
)
from support.toys import same_bits


def batches(count=4):
    torch.manual_seed(0)
    return [torch.randn(8, 3) for _ in range(count)]


class Own(TrainerBase):
    """A trainer that knows nothing of Stoker: its names, its iterator, its update."""

    def __init__(self, data):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Linear(3, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.batches = itertools.cycle(data)

    def run_step(self):
        loss = self.net(next(self.batches)).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.write_metrics({"own_loss": loss}, 0.0)


def plain(data, steps):
    torch.manual_seed(1)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for batch in itertools.islice(itertools.cycle(data), steps):
        opt.zero_grad()
        net(batch).pow(2).mean().backward()
        opt.step()
    return net


def test_a_trainer_of_its_own_trains_its_own_model():
    trainer = Own(batches())
    given = (trainer.net, trainer.opt)
    trainer.train(0, 6)
    assert same_bits(trainer.net, plain(batches(), 6))
    assert (trainer.net, trainer.opt) == given


class OwnLoader(Own):
    """The names of LiBai, with an iterator that is made in the constructor."""

    def __init__(self, data):
        super().__init__(data)
        self.model, self.optimizer, self.data_loader = self.net, self.opt, data
        del self.net, self.opt, self.batches
        self._data_loader_iter = iter(self.data_loader)

    def run_step(self):
        assert isinstance(self.model, nn.Module)
        assert isinstance(self.optimizer, torch.optim.Optimizer)
        loss = self.model(next(self._data_loader_iter)).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.clip_grad()
        self.optimizer.step()
        self.write_metrics({"own_loss": loss}, 0.0)


@pytest.mark.parametrize("killed_at", [None, 3, 5])
def test_a_trainer_with_libais_names_resumes_with_the_same_bits(tmp_path, killed_at):
    def run(*extra):
        trainer = OwnLoader(batches())
        kept = Checkpointer(trainer.model, tmp_path, optimizer=trainer.optimizer)
        trainer.register_hooks([hooks.PeriodicCheckpointer(kept, 2), *extra])
        trainer.train(0, 7)
        return trainer

    if killed_at is not None:
        with pytest.raises(KeyboardInterrupt):
            run(Stop(killed_at))
    assert same_bits(run().model, plain(batches(), 7))


def test_data_that_is_read_past_stoker_is_reported_before_checkpoints(tmp_path, caplog):
    trainer = Own(batches())
    trainer.register_hooks([hooks.PeriodicCheckpointer(Checkpointer(trainer.net, tmp_path), 2)])
    with caplog.at_level(logging.WARNING, "libai"):
        trainer.train(0, 4)
    assert "checkpoints do not store its position" in caplog.text
    restored = Checkpointer(nn.Linear(3, 1), tmp_path)
    restored.resume_or_load("")
    assert same_bits(restored.model, trainer.net)


class Adversaries(TrainerBase):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.maker, self.critic = nn.Linear(1, 1), nn.Linear(1, 1)
        self.of_maker = torch.optim.SGD(self.maker.parameters(), lr=0.1)
        self.of_critic = torch.optim.Adam(self.critic.parameters(), lr=0.1)
        self.stray = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)

    def run_step(self):
        for model, optimizer in ((self.maker, self.of_maker), (self.critic, self.of_critic)):
            optimizer.zero_grad()
            self.critic(self.maker(torch.ones(1, 1))).sum().backward()
            optimizer.step()
            assert isinstance(model, nn.Linear)


def test_several_models_and_optimizers_are_saved_together(tmp_path, caplog):
    def run(last, *extra):
        trainer = Adversaries()
        kept = Checkpointer(trainer.maker, tmp_path)
        trainer.register_hooks([hooks.PeriodicCheckpointer(kept, 2), *extra])
        trainer.train(0, last)
        return trainer

    with pytest.raises(KeyboardInterrupt):
        run(6, Stop(5))
    with caplog.at_level(logging.WARNING, "libai"):
        again = run(6)
    assert "do not store self.stray" in caplog.text
    whole = Adversaries()
    whole.train(0, 6)
    assert same_bits(again.maker, whole.maker)
    assert same_bits(again.critic, whole.critic)
    states = again.of_critic.state_dict()["state"], whole.of_critic.state_dict()["state"]
    assert same_bits(*({k: v["exp_avg"] for k, v in one.items()} for one in states))


class Points(TrainerBase):
    """A trainer that overrides the points themselves."""

    def __init__(self, words):
        super().__init__()
        self.words = words

    def before_train(self):
        self.words.append("mine")
        super().before_train()

    def after_step(self):
        super().after_step()
        self.words.append(f"after {self.iter}")

    def run_step(self):
        self.words.append(f"step {self.iter}")


class Word(HookBase):
    def __init__(self, words):
        self.words = words

    def before_train(self):
        self.words.append("hook")

    def before_step(self):
        self.words.append("before")

    def after_step(self):
        self.words.append("hooked")


def test_points_that_a_trainer_overrides_are_called_and_call_the_hooks():
    words = []
    trainer = Points(words)
    trainer.register_hooks([Word(words)])
    trainer.train(0, 2)
    step = [["before", f"step {i}", "hooked", f"after {i}"] for i in (0, 1)]
    assert words == ["mine", "hook", *step[0], *step[1]]


class OwnLoop(Points):
    def train(self, start_iter, max_iter):
        with EventStorage(start_iter) as self.storage:
            self.before_train()
            for self.iter in range(start_iter, max_iter):
                self.before_step()
                self.run_step()
                self.after_step()
            self.after_train()


def test_a_loop_of_its_own_calls_hooks_and_rejects_those_that_need_stokers(tmp_path):
    words = []
    trainer = OwnLoop(words)
    trainer.register_hooks([Word(words)])
    trainer.train(0, 1)
    assert words == ["mine", "hook", "before", "step 0", "hooked", "after 0"]
    kept = Checkpointer(nn.Linear(1, 1), tmp_path)
    trainer.register_hooks([hooks.PeriodicCheckpointer(kept, 1)])
    with pytest.raises(RuntimeError, match=r"acts only in TrainerBase.train\(\)"):
        trainer.train(0, 1)


class SumGraph(GraphBase):
    """A graph with a ``build`` of its own."""

    def build(self, **data):
        found = self.model(**data)
        if self.is_train:
            found["cls_loss"].backward()
        return found


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_graph_with_a_build_of_its_own_is_called(tmp_path, accumulate):
    sizes = {"num_accumulation_steps": accumulate, "train_micro_batch_size": 8, "train_iter": 4}
    cfg = config(tmp_path / "graph", **sizes)
    cfg.model.dropout = 0.0
    node = LazyCall(SumGraph)
    cfg.graph = {"enabled": True, "backend": "eager"}
    cfg.graph.update(train_graph=node(is_train=True), eval_graph=node(is_train=False))
    own = trained(cfg)
    assert own._last_eval_results["Acc@1"] > 0
    stock = config(tmp_path / "stock", **sizes)
    stock.model.dropout = 0.0
    pairs = zip(own.model.parameters(), trained(stock).model.parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def train_net(*words):
    """What LiBai's tool does, in its order."""
    args = flags(*words)
    cfg = LazyConfig.apply_overrides(LazyConfig.load(args.config_file), args.opts)
    default_setup(cfg, args)
    if args.fast_dev_run:
        cfg.train.train_epoch = 0
        cfg.train.train_iter = 20
        cfg.train.evaluation.eval_period = 10
        cfg.train.log_period = 1
    if args.eval_only:
        model = DefaultTrainer.build_model(cfg)
        kept = Checkpointer(model, save_dir=cfg.train.output_dir)
        kept.resume_or_load(cfg.train.load_weight, resume=args.resume)
        if try_get_key(cfg, "graph.enabled", default=False):
            model = DefaultTrainer.build_graph(cfg, model, is_train=False)
        loaders = DefaultTrainer.build_test_loader(cfg, None)
        return DefaultTrainer.test(cfg, loaders, model)
    trainer = DefaultTrainer(cfg)
    trainer.train()
    return trainer


@pytest.fixture
def tool(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from support.tasks.libai import config\n"
        "cfg = config('out', train_iter=8)\n"
        "model, train, optim, dataloader = cfg.model, cfg.train, cfg.optim, cfg.dataloader\n"
        "graph = dict(enabled=True, backend='eager')\n"
        "del cfg\n"
    )
    return lambda *words: train_net("--config-file", "mine.py", *words)


@pytest.mark.slow
@pytest.mark.row("L23")
def test_the_flags_of_the_command_line_do_what_libai_says(tool, tmp_path):
    first = tool()
    assert (first.start_iter, first.iter) == (0, 8)
    assert tool("--eval-only", "--resume") == first._last_eval_results
    weights = f"train.load_weight={tmp_path}/out/model_final"
    assert tool("--eval-only", weights, "train.output_dir=other") == first._last_eval_results
    untrained = tool("--eval-only", "train.output_dir=third")
    assert untrained != first._last_eval_results
    more = tool("--resume", "train.train_iter=12")
    assert (more.start_iter, more.iter) == (8, 12)
    quick = tool("--fast-dev-run", "train.output_dir=quick", "train.train_epoch=50")
    assert (quick.iter, quick.cfg.train.log_period) == (20, 1)
    assert "Starting training from iteration 0" in (tmp_path / "quick" / "log.txt").read_text()


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.row("L23")
def test_each_rank_has_its_seed_and_log_and_only_the_first_prints(tmp_path):
    (text, seed), (silent, other) = pool().run(2, printed_in_ranks, tmp_path)
    assert "Starting training from iteration 0" in text
    assert "total_loss" in text
    assert silent == ""
    assert (seed, other) == (1234, 1235)
    assert "Starting training" in (tmp_path / "log.txt").read_text()
    assert "Starting training" in (tmp_path / "log.txt.rank1").read_text()


class TwoLosses(Net):
    def forward(self, images, labels=None):
        found = super().forward(images, labels)
        return {**found, "aux_loss": found["cls_loss"] / 2} if self.training else found


@pytest.mark.row("L09")
def test_every_console_line_has_every_number_and_the_last_is_the_last_iteration(tmp_path, caplog):
    cfg = config(tmp_path, train_iter=13, evaluation={"enabled": False})
    cfg.model._target_ = TwoLosses
    with caplog.at_level(logging.INFO, "libai"):
        trained(cfg)
    records = [record for record in caplog.records if record.name == "libai.events"]
    lines = [
        dict(part.split(": ", 1) for part in record.getMessage().split("  ")) for record in records
    ]
    assert [line["iteration"] for line in lines] == ["3/13", "7/13", "11/13", "12/13"]
    names = "iteration consumed_samples total_loss cls_loss aux_loss time data_time"
    expected = {*names.split(), "total_throughput", "lr"}
    assert all(set(line) - {"eta"} == expected for line in lines)
    assert all("eta" in line for line in lines[:-1])
    assert [line["consumed_samples"] for line in lines] == ["64", "116", "180", "196"]
    for line in lines:
        assert float(line["total_loss"]) == pytest.approx(1.5 * float(line["cls_loss"]), rel=0.01)
        assert line["time"].endswith(" s/iter")
        each = float(line["time"].split()[0])
        assert float(line["total_throughput"].split()[0]) == pytest.approx(16 / each, rel=0.1)
        assert float(line["lr"]) > 0
    last = caplog.records.index(records[-1])
    ended = [i for i, r in enumerate(caplog.records) if "Total training time" in r.getMessage()]
    assert ended[0] > last


@pytest.mark.slow
@pytest.mark.row("L16")
def test_load_weight_starts_at_zero_with_weights_alone_and_reports_three_groups(tmp_path, caplog):
    source = trained(config(tmp_path / "a"))
    path = str(tmp_path / "a" / "model_final")
    losses = Losses()
    cfg = config(tmp_path / "b", load_weight=path, train_iter=3)
    default_setup(cfg, flags())
    trainer = DefaultTrainer(cfg)
    assert same_bits(trainer.model, source.model)
    assert (trainer.start_iter, trainer.optimizer.state_dict()["state"]) == (0, {})
    assert trainer.lr_scheduler.last_epoch == 0
    trainer.register_hooks([losses])
    trainer.train()
    assert [at for at, _ in losses.seen] == [0, 1, 2]
    other = nn.ModuleDict({"layers": nn.Sequential(nn.Linear(64, 8)), "own": nn.Linear(1, 1)})
    before = other["own"].weight.clone()
    with caplog.at_level(logging.WARNING):
        Checkpointer(other).load(path, checkpointables=[])
    said = "\n".join(record.getMessage() for record in caplog.records)
    groups = {
        "missing": ("own.weight", "own.bias"),
        "unexpected": ("layers.3.weight", "layers.3.bias"),
        "of another shape": ("layers.0.weight", "layers.0.bias"),
    }
    for group, names in groups.items():
        part = next(part for part in said.replace(";", "\n").split("\n") if group in part)
        assert all(name in part for name in names), (group, part)
    assert before.equal(other["own"].weight)


# Data


class Pictures(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return Instance(
            images=DistTensorData(torch.full((2,), float(index))),
            labels=DistTensorData(torch.tensor(index), placement_idx=-1),
        )


def ids(batch):
    return batch.get("labels").tensor.tolist()


def test_samples_with_fields_become_batches():
    batch = Instance.stack([Pictures()[i] for i in (3, 1)])
    assert list(batch.get_fields()) == ["images", "labels"]
    assert DefaultTrainer.get_batch(batch)["images"].tolist() == [[3, 3], [1, 1]]
    assert (batch.has("labels"), len(batch), ids(batch)) == (True, 2, [3, 1])
    batch.remove("labels")
    with pytest.raises(AttributeError, match="no field 'labels'"):
        batch.labels
    with pytest.raises(ValueError, match="samples differ"):
        DistTensorData.stack([DistTensorData(torch.zeros(2)), DistTensorData(torch.zeros(3))])
    with pytest.raises(TypeError, match="expected a tensor"):
        DistTensorData.stack([DistTensorData([1])])
    with pytest.raises(ValueError, match="cannot be stacked"):
        Instance.stack([Instance(a="x")])


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_cyclic_sampler_reads_all_data_again_and_again_and_from_anywhere(ranks):
    def sampler(rank, consumed=0):
        return CyclicSampler(range(12), 3, True, consumed, rank, ranks, seed=5)

    whole = [list(itertools.islice(sampler(rank), 9)) for rank in range(ranks)]
    per_pass = 12 // 3 // ranks
    first = sorted(i for rank in whole for batch in rank[:per_pass] for i in batch)
    assert first == list(range(12))
    assert whole[0][:per_pass] != whole[0][per_pass : 2 * per_pass]
    for rank in range(ranks):
        later = sampler(rank, consumed=5 * 3 * ranks)
        assert list(itertools.islice(later, 4)) == whole[rank][5:]
    with pytest.raises(ValueError, match="fewer than one batch"):
        CyclicSampler(range(2), 3)


def test_a_single_round_gives_all_ranks_equally_many_samples():
    found = [list(SingleRoundSampler(range(7), 2, False, rank, 2)) for rank in (0, 1)]
    assert found == [[[0, 1], [2, 3]], [[4, 5], [6, 0]]]
    assert list(SingleRoundSampler(range(7), 3, drop_last=True)) == [[0, 1, 2], [3, 4, 5]]
    assert len(SingleRoundSampler(range(7), 3)) == 3
    shuffled = list(SingleRoundSampler(range(7), 3, True, seed=1))
    assert sorted(itertools.chain(*shuffled)) == list(range(7))


def test_loaders_are_built_from_nodes():
    nodes = [LazyCall(Pictures)(), LazyCall(Pictures)()]
    train, *others = build_image_train_loader(
        nodes, 4, num_workers=0, seed=3, mixup_func=LazyCall(nn.Identity)()
    )
    assert others == [None, None]
    assert len(train.dataset) == 20
    assert isinstance(train.mixup_func, nn.Identity)
    own = LazyCall(SingleRoundSampler)(shuffle=False, drop_last=True)
    test = build_image_test_loader(LazyCall(Pictures)(), 4, sampler=own, num_workers=0)
    assert [ids(batch) for batch in test] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert own == LazyCall(SingleRoundSampler)(shuffle=False, drop_last=True)


class Documents:
    def __init__(self):
        self.doc_idx = list(range(11))

    def get_doc_idx(self):
        return self.doc_idx

    def set_doc_idx(self, doc_idx):
        self.doc_idx = doc_idx


class Texts(Dataset):
    def __init__(self, indexed_dataset, max_num_samples):
        self.documents = indexed_dataset.get_doc_idx()[:-1]
        self.limit = max_num_samples

    def __len__(self):
        return len(self.documents)

    def __getitem__(self, index):
        return Instance(labels=DistTensorData(torch.tensor(self.documents[index])))


def test_documents_are_split_in_three():
    node = LazyCall(Texts)(indexed_dataset=LazyCall(Documents)(), max_num_samples=None)
    loaders = build_nlp_train_val_test_loader(
        [node], [[6, 3, 1]], [1.0], [100, 50, 20], 2, 2, num_workers=0
    )
    parts = [loader.dataset.datasets[0] for loader in loaders]
    assert [part.documents for part in parts] == [[0, 1, 2, 3, 4, 5], [6, 7, 8], [9]]
    assert [part.limit for part in parts] == [100, 50, 20]
    assert [ids(batch) for batch in loaders[1]] == [[6, 7], [8]]


class Fields(Digits):
    def __getitem__(self, index):
        found = super().__getitem__(index)
        return Instance(**{name: DistTensorData(one) for name, one in found.items()})


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", [None, 9])
def test_libais_loaders_train_and_resume_with_the_same_bits(tmp_path, killed_at):
    def run(folder, *extra):
        cfg = config(folder, train_iter=12)
        data = LazyCall(Fields)(first=0, last=100)
        cfg.dataloader.train = LazyCall(build_image_train_loader)(dataset=[data], num_workers=0)
        cfg.dataloader.test = [LazyCall(build_image_test_loader)(dataset=data, num_workers=0)]
        return trained(cfg, *extra)

    whole = run(tmp_path / "whole")
    assert whole._last_eval_results["Acc@1"] > 20
    if killed_at is not None:
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "cut", Stop(killed_at))
    assert same_bits(run(tmp_path / "cut").model, whole.model)


def test_several_evaluators_are_passed_as_a_list():
    class Count(DatasetEvaluator):
        def __init__(self, name):
            self.name, self.seen = name, 0

        def process(self, inputs, outputs):
            self.seen += len(inputs["labels"])

        def evaluate(self):
            return {self.name: self.seen}

    loader = DataLoader(Digits(0, 20), batch_size=8)
    both = [Count("a"), Count("b")]
    found = inference_on_dataset(Net(), loader, 8, 1e5, DefaultTrainer.get_batch, "cpu", both)
    assert found == {"a": 20, "b": 20}


def test_a_model_may_return_its_loss_alone_and_a_batch_be_a_list():
    class Alone(nn.Linear):
        def forward(self, x):
            return super().forward(x).sum()

    class ByPosition(EagerTrainer):
        def run_once(self):
            self.run_step(lambda data: [data])

    model = Alone(3, 1)
    trainer = ByPosition(model, batches(), torch.optim.SGD(model.parameters(), lr=0.1))
    seen = []
    trainer.register_hooks(
        [hooks.CallbackHook(after_step=lambda t: seen.append(get_event_storage().latest()))]
    )
    trainer.train(0, 2)
    assert len(seen) == 2
    assert "total_loss" in seen[0]


# Files


def test_paths_are_local(tmp_path):
    paths = PathManagerBase()
    with paths.open(tmp_path / "a.txt", "w") as file:
        file.write("x")
    assert paths.set_cwd(str(tmp_path))
    assert paths.copy("a.txt", "b.txt")
    assert not paths.copy("a.txt", "b.txt")
    assert paths.mv("b.txt", "c.txt")
    paths.mkdirs("d/e")
    with paths.opena("d/f.txt", "w") as file:
        file.write("y")
    assert sorted(paths.ls(".")) == ["a.txt", "c.txt", "d"]
    assert (paths.isdir("d"), paths.isfile("d"), paths.exists("no")) == (True, False, False)
    with pytest.raises(ValueError, match="opena writes"):
        paths.opena("a.txt", "r")
    with pytest.raises(UnsupportedURLError, match="not a local path"):
        paths.open("s3://x/y")
    with pytest.raises(UnsupportedURLError, match="not a local path"):
        paths.copy("a.txt", "memory://x")
    with pytest.raises(AttributeError, match="no 'register_handler': it opens local files"):
        paths.register_handler(object())
    assert os.fspath(LazyPath(lambda: "abc")) == "abc"
