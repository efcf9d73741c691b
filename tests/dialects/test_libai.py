"""LiBai's rows, on its own names."""

import gc
import logging
import multiprocessing
import random
import signal
import weakref
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from stoker import CheckpointError
from stoker.dialects.libai import scheduler
from stoker.dialects.libai.config import (
    LazyCall,
    LazyConfig,
    configurable,
    get_config,
    instantiate,
    try_get_key,
)
from stoker.dialects.libai.engine import (
    DefaultTrainer,
    EagerTrainer,
    GraphTrainer,
    HookBase,
    TrainerBase,
    default_setup,
    hooks,
)
from stoker.dialects.libai.engine.default import prepared
from stoker.dialects.libai.evaluation import (
    ClsEvaluator,
    DatasetEvaluator,
    DatasetEvaluators,
    PPLEvaluator,
    RegEvaluator,
    flatten_results_dict,
    inference_on_dataset,
)
from stoker.dialects.libai.models import GraphBase
from stoker.dialects.libai.optim import get_default_optimizer_params
from stoker.dialects.libai.utils import checkpoint, distributed
from stoker.dialects.libai.utils.checkpoint import Checkpointer
from stoker.dialects.libai.utils.events import (
    EventStorage,
    EventWriter,
    JSONWriter,
    TensorboardXWriter,
    get_event_storage,
)
from support.pool import pool
from support.tasks.libai import (
    Digits,
    Losses,
    MyTrainer,
    Net,
    Stop,
    config,
    flags,
    killed_at,
    my_trainer_in_ranks,
    rows,
    trained,
    two_ranks,
)
from support.toys import same_bits


@pytest.fixture(autouse=True)
def quiet():
    yield
    for name in ("libai", "stoker"):
        logger = logging.getLogger(name)
        for handler in [h for h in logger.handlers if type(h).__name__ in ("LogFile", "_Output")]:
            logger.removeHandler(handler)


class Recorder(HookBase):
    def __init__(self, words, name=""):
        self.words, self.name = words, name

    def before_train(self):
        self.words.append(self.name + "before_train")

    def before_step(self):
        self.words.append(self.name + "before_step")

    def after_step(self):
        self.words.append(self.name + "after_step")

    def after_train(self):
        self.words.append(self.name + "after_train")


class Bare(TrainerBase):
    """No model, no data: only steps."""

    def __init__(self, words, fail_at=None):
        super().__init__()
        self.words, self.fail_at = words, fail_at

    def run_step(self):
        self.words.append(f"run_step {self.iter}")
        if self.iter == self.fail_at:
            raise ZeroDivisionError("in run_step")


@pytest.mark.row("L01")
def test_the_points_and_steps_come_in_order_each_once():
    words = []
    trainer = Bare(words)
    trainer.register_hooks([Recorder(words)])
    trainer.train(3, 6)
    middle = [w for i in (3, 4, 5) for w in ("before_step", f"run_step {i}", "after_step")]
    assert words == ["before_train", *middle, "after_train"]


def test_the_golden_sequence_of_four_iterations():
    words = []
    trainer = Bare([])
    trainer.register_hooks([Recorder(words)])
    trainer.train(0, 4)
    assert words == ["before_train", *["before_step", "after_step"] * 4, "after_train"]


@pytest.mark.row("L02")
def test_the_iteration_distinguishes_success_from_failure():
    well, failed = Bare([]), Bare([], fail_at=2)
    seen = []
    for trainer in (well, failed):
        trainer.register_hooks([hooks.CallbackHook(after_train=lambda t: seen.append(t.iter))])
    well.train(0, 4)
    with pytest.raises(ZeroDivisionError):
        failed.train(0, 4)
    assert seen == [4, 2]
    assert (well.iter, failed.iter) == (4, 2)


class FailsAtTheEnd(HookBase):
    def after_train(self):
        raise LookupError("in after_train")


@pytest.mark.row("L03")
def test_the_first_error_is_logged_and_stays_on_top(caplog):
    words = []
    trainer = Bare([], fail_at=1)
    trainer.register_hooks([FailsAtTheEnd(), Recorder(words)])
    with caplog.at_level(logging.INFO, "libai"), pytest.raises(ZeroDivisionError):
        trainer.train(0, 4)
    assert words[-1] == "after_train"
    record = next(r for r in caplog.records if "Exception during training" in r.getMessage())
    assert record.exc_info[0] is ZeroDivisionError


@pytest.mark.slow
@pytest.mark.row("L04")
def test_hooks_keep_their_order_and_hold_the_trainer_weakly():
    words = []
    trainer = Bare([])
    trainer.register_hooks([Recorder(words, "a "), None, Recorder(words, "b ")])
    trainer.train(0, 1)
    assert words[:2] == ["a before_train", "b before_train"]
    with pytest.raises(TypeError, match="expected a HookBase object"):
        trainer.register_hooks([Recorder])
    hook, gone = trainer._hooks[0], weakref.ref(trainer)
    assert hook.trainer.iter == 1
    gc.collect()
    gc.disable()
    try:
        del trainer
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.row("L05")
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_documents_trainer_and_hook_work_and_end_at_the_stock_bits(tmp_path, accumulate):
    cfg = config(tmp_path / "own", num_accumulation_steps=accumulate, train_micro_batch_size=4)
    default_setup(cfg, flags())
    mine = MyTrainer(cfg)
    mine.train()
    assert mine.info.lines[:2] == ["start training at 0", "iteration 0!"]
    assert mine.info.lines[-1] == "end training at 12"
    assert "cls_loss" in mine._trainer.previous_output
    stock = trained(
        config(tmp_path / "stock", num_accumulation_steps=accumulate, train_micro_batch_size=4)
    )
    if accumulate == 1:
        assert same_bits(mine.model, stock.model)
    else:
        pairs = zip(mine.model.parameters(), stock.model.parameters(), strict=True)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.row("L05")
def test_a_custom_step_keeps_processes_in_sync(tmp_path):
    first, second = pool().run(2, my_trainer_in_ranks, tmp_path)
    assert same_bits(first, second)


@pytest.mark.slow
def test_a_run_is_bit_equal_to_the_plain_loop(tmp_path):
    cfg = config(tmp_path)
    trainer = trained(cfg)
    torch.manual_seed(cfg.train.seed)
    random.seed(cfg.train.seed)
    np.random.seed(cfg.train.seed)
    loader = DataLoader(Digits(0, 100), batch_size=16, shuffle=True)
    model = Net(16)
    params = get_default_optimizer_params(model, clip_grad_max_norm=1.0, weight_decay_bias=0.0)
    optimizer = torch.optim.AdamW(params, lr=0.01, weight_decay=0.01)
    rate = scheduler.WarmupCosineLR(optimizer, 12, 0.001, 0, alpha=0.01)
    done = 0
    with EventStorage(0):
        while done < 12:
            for batch in loader:
                if done == 12:
                    break
                optimizer.zero_grad()
                model(**batch)["cls_loss"].backward()
                for group in optimizer.param_groups:
                    nn.utils.clip_grad_norm_(group["params"], 1.0)
                optimizer.step()
                rate.step()
                done += 1
    assert same_bits(trainer.model, model)


@pytest.mark.row("L06")
def test_numbers_put_in_a_model_reach_metrics_json_under_their_iteration(tmp_path):
    with pytest.raises(RuntimeError, match="outside a run"):
        get_event_storage()
    trained(config(tmp_path, evaluation={"enabled": False}))
    found = rows(tmp_path)
    assert [row["iteration"] for row in found] == [3, 7, 11]
    assert all("some_accuracy" in row and "lr" in row for row in found)
    with EventStorage(5) as storage:
        storage.put_scalar("a", 1.0)
        assert storage.iter == 5
        assert storage.latest() == {"a": (1.0, 5)}
        for value in (9.0, 2.0):
            storage.put_scalar("a", value)
        storage.put_scalar("b", 7.0, smoothing_hint=False)
        assert storage.latest_with_smoothing_hint(3) == {"a": (2.0, 5), "b": (7.0, 5)}
        assert storage.history("a").avg(2) == 5.5
        assert storage.histories()["a"].latest() == 2.0
        assert storage.smoothing_hints() == {"a": True, "b": False}
        with pytest.raises(ValueError, match="use the same value for all calls"):
            storage.put_scalar("a", 1.0, smoothing_hint=False)
        with pytest.raises(KeyError, match="no value was put"):
            storage.history("c")
        with storage.name_scope("x"):
            storage.put_scalars(y=1.0)
        assert "x/y" in storage.latest()


@pytest.mark.slow
@pytest.mark.row("L07")
def test_metrics_json_is_appended_when_a_run_resumes(tmp_path):
    trained(config(tmp_path, train_iter=8))
    first = (tmp_path / "metrics.json").read_text()
    trained(config(tmp_path, train_iter=12))
    assert (tmp_path / "metrics.json").read_text().startswith(first)
    found = [row["iteration"] for row in rows(tmp_path)]
    assert found == sorted(found)
    assert found[-1] == 11


@pytest.mark.row("L08")
def test_every_evaluation_is_in_metrics_json_and_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained(config(tmp_path, train_iter=11))
    assert [row["iteration"] for row in rows(tmp_path) if "Acc@1" in row] == [4, 9, 10]
    board = EventAccumulator(str(tmp_path))
    board.Reload()
    assert [one.step for one in board.Scalars("Acc@1")] == [4, 9, 10]


@pytest.mark.row("L09")
def test_the_console_line_has_everything_and_none_comes_after_the_end(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "libai"):
        trained(config(tmp_path, train_iter=13, evaluation={"enabled": False}))
    lines = [r.getMessage() for r in caplog.records if r.name == "libai.events"]
    assert len(lines) == 4
    words = "eta: iteration: consumed_samples: cls_loss: total_loss: time: data_time: lr:"
    assert [word for word in words.split() if word not in lines[1]] in ([], ["cls_loss:"])
    assert "iteration: 7/13" in lines[1]
    assert "total_throughput" in lines[1]
    assert "iteration: 12/13" in lines[-1]


@pytest.mark.slow
@pytest.mark.row("L10", "L11")
def test_checkpoints_have_their_names_and_the_oldest_go(tmp_path):
    trained(config(tmp_path, train_iter=14))
    names = sorted(path.name for path in tmp_path.glob("model_*"))
    assert names == ["model_0000007", "model_0000011", "model_best", "model_final"]
    assert (tmp_path / "last_checkpoint").read_text() == "model_final"
    assert (tmp_path / "model_final" / "model.safetensors").is_file()
    trained(config(tmp_path, train_iter=18))
    names = sorted(path.name for path in tmp_path.glob("model_0*"))
    assert names == ["model_0000011", "model_0000015"]


class Scripted(DefaultTrainer):
    """Evaluations that give what the test says."""

    script: ClassVar[list] = []

    @classmethod
    def test(cls, cfg, test_loaders, model, evaluator=None):
        return {"Acc@1": cls.script.pop(0)}


def best_of(folder):
    kept = Checkpointer(nn.Linear(1, 1), folder)
    from stoker.checkpoint import Checkpoints

    path = Checkpoints(folder / "model_best").newest()
    assert kept.has_checkpoint()
    return Checkpoints(folder / "model_best").load(path).shared["extra"]


@pytest.mark.slow
@pytest.mark.row("L12")
def test_only_a_strict_improvement_is_the_best_also_after_a_resume(tmp_path):
    nan = float("nan")
    script = [nan, 50.0, 50.0, float("inf"), 40.0, 45.0]
    Scripted.script = list(script)
    cfg = config(tmp_path, train_iter=5, evaluation={"eval_period": 1})
    Scripted(cfg).train()
    assert best_of(tmp_path) == {"iteration": 1, "best": 50.0}
    assert (tmp_path / "last_checkpoint").read_text() == "model_final"
    Scripted.script = list(script)  # as at every start; resuming leaves the last of them
    cfg = config(tmp_path, train_iter=6, evaluation={"eval_period": 1})
    Scripted(cfg).train()
    assert Scripted.script == []
    assert best_of(tmp_path) == {"iteration": 1, "best": 50.0}


@pytest.mark.slow
@pytest.mark.row("L13")
def test_a_killed_run_resumes_with_the_losses_it_would_have_had(tmp_path):
    whole, first, second = Losses(), Losses(), Losses()
    one = trained(config(tmp_path / "whole", train_iter=14), whole)
    with pytest.raises(KeyboardInterrupt):
        trained(config(tmp_path / "killed", train_iter=14), first, Stop(at=10))
    other = trained(config(tmp_path / "killed", train_iter=14), second)
    assert first.seen == whole.seen[:10]
    assert second.seen == whole.seen  # what the first had seen when it was saved is restored
    assert same_bits(one.model, other.model)
    times = ("time", "data_time")
    plain = [
        [{k: v for k, v in row.items() if k not in times} for row in rows(tmp_path / folder)]
        for folder in ("whole", "killed")
    ]
    assert plain[0] == plain[1]


@pytest.mark.process
@pytest.mark.slow
def test_sharded_processes_learn_what_copies_do(tmp_path):
    copies = pool().run(2, two_ranks, tmp_path / "copies")
    shards = pool().run(2, two_ranks, tmp_path / "shards", None, True)
    assert [a for _, a in shards[0][2]] == pytest.approx([a for _, a in copies[0][2]], rel=1e-4)


@pytest.mark.process
@pytest.mark.slow
def test_processes_exchange_losses_only_where_a_writer_looks_at_them(tmp_path):
    one, other = pool().run(2, two_ranks, tmp_path, None, False, 3)
    both = list(zip(one[2], other[2], strict=True))
    same_on_all_ranks = [a[0] for a, b in both if a == b]
    assert same_on_all_ranks == [3, 4, 7, 9, 11]  # log_period=4, eval_period=5
    written = written_losses(tmp_path)
    assert [at for at, _ in written] == [3, 4, 7, 9, 11]
    pool().run(2, two_ranks, tmp_path / "cut", 10, False, 3)
    pool().run(2, two_ranks, tmp_path / "cut", None, False, 3)
    assert written_losses(tmp_path / "cut") == written


def written_losses(folder):
    return [(one["iteration"], one["total_loss"]) for one in rows(folder) if "total_loss" in one]


@pytest.mark.process
@pytest.mark.parametrize("at", [3, 9])
def test_a_run_that_was_really_killed_ends_at_the_same_bits(tmp_path, at):
    whole = trained(config(tmp_path / "whole", train_iter=11))
    process = multiprocessing.get_context("fork").Process(
        target=killed_at, args=(tmp_path / "killed", at, 11)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    again = trained(config(tmp_path / "killed", train_iter=11))
    assert same_bits(whole.model, again.model)
    ends = [
        [{k: v for k, v in row.items() if "time" not in k} for row in rows(tmp_path / folder)]
        for folder in ("whole", "killed")
    ]
    assert ends[0] == ends[1]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.row("L14", "L23")
def test_two_processes_resume_exactly_with_seeds_of_their_own(tmp_path):
    whole = pool().run(2, two_ranks, tmp_path / "whole")
    assert [one[0] for one in whole] == [[1234], [1235]]
    assert not set(whole[0][1][:40]) & set(whole[1][1][:40])  # the first pass
    assert [one[4] for one in whole] == [16, 16]
    assert same_bits(whole[0][3], whole[1][3])
    assert pool().run(2, two_ranks, tmp_path / "killed", 10) == [None, None]
    again = pool().run(2, two_ranks, tmp_path / "killed")
    for rank in (0, 1):
        assert again[rank][1] == whole[rank][1][-len(again[rank][1]) :]
        assert again[rank][2] == whole[rank][2]  # what the hook saw before is restored
        assert same_bits(again[rank][3], whole[rank][3])
    assert (tmp_path / "whole" / "log.txt").is_file()
    assert (tmp_path / "whole" / "log.txt.rank1").is_file()


@pytest.mark.slow
@pytest.mark.row("L15")
def test_a_finished_run_reports_that_it_is_done_and_continues_if_given_more(tmp_path, caplog):
    trained(config(tmp_path))
    with caplog.at_level(logging.INFO):
        again = trained(config(tmp_path))
    assert any("nothing left to do" in r.getMessage() for r in caplog.records)
    assert again.iter == 12
    more = trained(config(tmp_path, train_iter=15))
    assert (more.start_iter, more.iter) == (12, 15)


@pytest.mark.slow
def test_without_resume_a_folder_that_holds_a_run_is_refused(tmp_path):
    trained(config(tmp_path))
    with pytest.raises(CheckpointError, match="holds the checkpoints of another run"):
        trained(config(tmp_path, resume=False))


@pytest.mark.slow
@pytest.mark.row("L16")
def test_load_weight_takes_weights_alone_and_names_what_does_not_fit(tmp_path, caplog):
    trained(config(tmp_path / "a"))
    other = nn.ModuleDict({"layers": nn.Sequential(nn.Linear(64, 8)), "own": nn.Linear(1, 1)})
    with caplog.at_level(logging.WARNING):
        Checkpointer(other).load(tmp_path / "a" / "model_final", checkpointables=[])
    said = " ".join(r.getMessage() for r in caplog.records)
    for group in ("missing", "unexpected", "of another shape"):
        assert group in said
    cfg = config(tmp_path / "b", load_weight=str(tmp_path / "a" / "model_final"))
    trainer = DefaultTrainer(cfg)
    assert trainer.start_iter == 0
    weights = trainer.model.state_dict()
    trained_ones = Checkpointer(Net(16))
    trained_ones.load(tmp_path / "a" / "model_final")
    assert same_bits(weights, trained_ones.model.state_dict())


def test_messages_about_weights_that_do_not_fit_name_them():
    assert checkpoint.get_missing_parameters_message(["a.weight", "b"]).endswith("a.weight, b")
    assert checkpoint.get_unexpected_parameters_message(["b"]) == "not used by the model: b"


@pytest.mark.row("L17")
def test_nodes_are_edited_built_inside_out_and_saved(tmp_path):
    cfg = config(tmp_path)
    cfg.model.hidden = 24
    assert instantiate(cfg.model).layers[0].out_features == 24
    assert instantiate(cfg.model, hidden=5).layers[0].out_features == 5
    assert isinstance(instantiate(cfg.dataloader.train).dataset, Digits)
    assert [type(one) for one in instantiate(cfg.dataloader.test)] == [DataLoader]
    assert instantiate(cfg.dataloader) is cfg.dataloader  # a section is no call
    kept = LazyCall(dict)(inner=LazyCall(Net)(), _recursive_=False)
    assert instantiate(kept)["inner"] == LazyCall(Net)()
    kept["_recursive_"] = True
    assert isinstance(instantiate(kept)["inner"], Net)
    with pytest.raises(TypeError) as error:
        instantiate(LazyCall(Net)(hiden=3))
    assert "hiden" in str(error.value)
    with pytest.raises(TypeError, match="expected a LazyCall"):
        instantiate({"a": 1}, b=2)
    assert "while support.tasks.libai.Net was built" in error.value.__notes__
    LazyConfig.save(cfg, tmp_path / "saved.yaml")
    saved = LazyConfig.load(tmp_path / "saved.yaml")
    assert saved.model == {"hidden": 24, "_target_": "support.tasks.libai.Net"}
    LazyConfig.save(saved, tmp_path / "again.yaml")
    assert LazyConfig.load(tmp_path / "again.yaml") == saved
    assert "cfg.model = support.tasks.libai.Net(hidden=24)\n" in LazyConfig.to_py(cfg)


@pytest.mark.row("L18")
def test_overrides_are_typed_and_unknown_places_refused(tmp_path):
    cfg = config(tmp_path)
    LazyConfig.apply_overrides(
        cfg, ["train.train_iter=3", "optim.lr=1e-4", "optim.betas=[0.8,0.9]", "model.hidden=4"]
    )
    assert (cfg.train.train_iter, cfg.optim.lr, list(cfg.optim.betas)) == (3, 1e-4, [0.8, 0.9])
    with pytest.raises(KeyError, match="'train.train_iter' is 3"):
        LazyConfig.apply_overrides(cfg, ["train.train_iter.x=1"])
    with pytest.raises(KeyError, match="did you mean 'train'"):
        LazyConfig.apply_overrides(cfg, ["trian.train_iter=1"])
    with pytest.raises(ValueError, match="expected key=value"):
        LazyConfig.apply_overrides(cfg, ["~train.train_iter"])
    LazyConfig.apply_overrides(cfg, ["optim.eps=1e-6", "+mine={a: [1, x]}", "model.name=null"])
    assert (cfg.optim.eps, cfg.mine, cfg.model.name) == (1e-6, {"a": [1, "x"]}, None)


def test_a_config_file_is_read_with_its_relatives(tmp_path):
    (tmp_path / "base.py").write_text("common = dict(lr=0.1, wide=dict(a=1))\n")
    (tmp_path / "main.py").write_text(
        "from stoker.dialects.libai.config import LazyConfig, get_config\n"
        "from .base import common\n"
        "train = get_config('common/train.py').train\n"
        "train.train_iter = 7\n"
        "again = LazyConfig.load_rel('base.py', 'common')\n"
    )
    cfg = LazyConfig.load(tmp_path / "main.py")
    assert (cfg.train.train_iter, cfg.common.wide.a, cfg.again.lr) == (7, 1, 0.1)
    train, again = LazyConfig.load(tmp_path / "main.py", ("train", "again"))
    assert (train.log_period, again.lr) == (20, 0.1)
    with pytest.raises(ValueError, match="has no 'trian'"):
        LazyConfig.load(tmp_path / "main.py", "trian")
    with pytest.raises(ValueError, match="did you mean 'common/train.py'"):
        get_config("common/trains.py")
    assert try_get_key(cfg, "train.no", "train.amp.enabled") is False
    assert try_get_key(cfg, "train.no.no", default=3) == 3


class Configured:
    @configurable
    def __init__(self, width, depth=1):
        self.size = (width, depth)

    @classmethod
    def from_config(cls, cfg):
        return {"width": cfg.train.train_iter}


def test_a_configurable_class_is_made_from_a_config_or_by_hand(tmp_path):
    assert Configured(3, depth=2).size == (3, 2)
    assert Configured(config(tmp_path)).size == (12, 1)
    assert Configured(cfg=config(tmp_path), depth=4).size == (12, 4)


@pytest.mark.row("L19")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((8, None, None), (8, 1, 8)),
        ((8, 3, None), (8, 3, 24)),
        ((None, None, 8), (8, 1, 8)),
        ((8, None, 24), (8, 3, 24)),
        ((8, 3, 24), (8, 3, 24)),
        ((None, None, None), "train_micro_batch_size or train.global_batch_size"),
        ((8, None, 20), "train.global_batch_size 20 is not divisible"),
        ((8, 2, 24), "but train.global_batch_size is 24"),
    ],
)
def test_batch_sizes_agree_or_are_refused(tmp_path, given, expected):
    names = ("train_micro_batch_size", "num_accumulation_steps", "global_batch_size")
    cfg = config(tmp_path, **dict(zip(names, given, strict=True)))
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            prepared(cfg)
    else:
        assert tuple(prepared(cfg)[name] for name in names) == expected


@pytest.mark.row("L19")
def test_epochs_and_shares_become_iterations(tmp_path):
    cfg = config(tmp_path, train_iter=5, train_epoch=2, warmup_ratio=0.25)
    cfg.train["checkpointer"] = {"save_model_after_n_epoch": 1}
    cfg.train["evaluation"] = {"eval_after_n_epoch": 0.5}
    rate = LazyCall(scheduler.WarmupMultiStepLR)(milestones=[0.5, 0.75], warmup_factor=0.1)
    cfg.train["scheduler"] = rate
    trainer = DefaultTrainer(cfg)
    train = trainer.cfg.train
    assert (train.train_iter, trainer.max_iter) == (13, 13)
    assert (train.checkpointer.period, train.evaluation.eval_period) == (7, 4)
    assert (train.scheduler.warmup_iter, train.scheduler.milestones) == (4, [6, 9])
    cfg = config(tmp_path, scheduler=LazyCall(scheduler.WarmupMultiStepLR)(milestones=[1.5]))
    with pytest.raises(ValueError, match="fractions of the run"):
        DefaultTrainer(cfg)


@pytest.mark.row("L20")
@pytest.mark.parametrize("accumulate", [1, 3])
def test_periods_count_updates_with_and_without_accumulation(tmp_path, accumulate):
    cfg = config(tmp_path, num_accumulation_steps=accumulate, train_micro_batch_size=4)
    trained(cfg)
    assert [row["iteration"] for row in rows(tmp_path) if "Acc@1" in row] == [4, 9, 11]
    steps = sorted(path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir())
    assert steps[-2:] == ["step-00000008", "step-00000012"]


@pytest.mark.slow
@pytest.mark.row("L21")
def test_two_loaders_of_one_class_are_both_reported_and_names_do_not_clash(tmp_path):
    cfg = config(tmp_path, evaluation={"eval_metric": "Digits-2/Acc@1"})
    cfg.dataloader["test"] = [
        LazyCall(DataLoader)(dataset=LazyCall(Digits)(first=a, last=b))
        for a, b in ((0, 50), (1500, 1700))
    ]
    trained(cfg)
    assert {"Digits/Acc@1", "Digits-2/Acc@1"} <= set(rows(tmp_path)[-1])
    assert (tmp_path / "model_best").is_dir()
    twice = DatasetEvaluators([ClsEvaluator(), ClsEvaluator()])
    with pytest.raises(ValueError, match="two evaluators return 'Acc@1'"):
        twice.evaluate()


@pytest.mark.row("L22")
def test_topk_is_exact_and_modes_are_restored_after_a_failure():
    scores, labels = torch.randn(10_000, 7), torch.randint(0, 7, (10_000,))
    judge = ClsEvaluator(topk=(1, 3, 9))
    judge.process({"labels": labels}, {"prediction_scores": scores})
    third = sum(
        int(label in row.topk(3).indices) for row, label in zip(scores, labels, strict=True)
    )
    results = judge.evaluate()
    assert results["Acc@3"] == 100 * third / 10_000
    assert results["Acc@9"] == 100

    class Fails(DatasetEvaluator):
        def process(self, inputs, outputs):
            raise ArithmeticError

    model = Net()
    model.train()
    loader = DataLoader(Digits(0, 40), batch_size=8)
    with pytest.raises(ArithmeticError):
        inference_on_dataset(model, loader, 8, 3, DefaultTrainer.get_batch, "cpu", Fails())
    assert all(module.training for module in model.modules())


def test_an_evaluation_counts_every_sample_once_and_minds_eval_iter():
    model, loader = Net(), DataLoader(Digits(0, 50), batch_size=16)
    seen = []

    class Counts(DatasetEvaluator):
        def process(self, inputs, outputs):
            seen.append(len(inputs["labels"]))

        def evaluate(self):
            return {"samples": sum(seen)}

    arguments = (DefaultTrainer.get_batch, "cpu", Counts())
    assert inference_on_dataset(model, loader, 16, 100, *arguments) == {"samples": 50}
    seen.clear()
    assert inference_on_dataset(model, loader, 16, 2, *arguments) == {"samples": 32}
    assert flatten_results_dict({"a": {"b": {"c": 1.0}}, "d": 2.0}) == {"a/b/c": 1.0, "d": 2.0}


def test_perplexity_and_correlation_are_over_samples():
    judge = PPLEvaluator()
    judge.reset()
    judge.process({"x": torch.zeros(3, 1)}, {"lm_loss": torch.tensor(1.0)})
    judge.process({"x": torch.zeros(1, 1)}, {"lm_loss": torch.tensor(3.0)})
    assert judge.evaluate()["lm_loss_PPL"] == pytest.approx(torch.tensor(1.5).exp().item())
    reg = RegEvaluator()
    reg.reset()
    reg.process({"labels": torch.arange(5.0)}, {"prediction_scores": torch.arange(5.0).exp()})
    found = reg.evaluate()
    assert found["spearman"] == pytest.approx(1)
    assert 0.8 < found["pearson"] < 1


@pytest.mark.row("L23")
def test_fast_dev_run_is_twenty_iterations(tmp_path):
    cfg = config(tmp_path, train_epoch=9)
    default_setup(cfg, flags("--fast-dev-run"))
    train = cfg.train
    assert (train.train_iter, train.train_epoch, train.log_period) == (20, 0, 1)
    assert train.evaluation.eval_period == 10
    assert LazyConfig.load(tmp_path / "config.yaml").train.train_iter == 20


@pytest.mark.row("L23")
def test_the_command_line_has_its_flags_and_resume_is_in_the_config(tmp_path):
    args = flags("--config-file", "c.py", "--resume", "--eval-only", "train.log_period=3")
    assert (args.config_file, args.resume, args.eval_only) == ("c.py", True, True)
    assert args.opts == ["train.log_period=3"]
    cfg = config(tmp_path)
    default_setup(cfg, args)
    assert cfg.train.resume is True


@pytest.mark.slow
@pytest.mark.row("L23")
def test_eval_only_is_what_the_script_does_with_the_parts(tmp_path):
    trainer = trained(config(tmp_path))
    cfg = config(tmp_path)
    default_setup(cfg, flags("--eval-only"))
    model = DefaultTrainer.build_model(cfg)
    Checkpointer(model, save_dir=cfg.train.output_dir).resume_or_load("", resume=True)
    loaders = DefaultTrainer.build_test_loader(cfg, None)
    assert DefaultTrainer.test(cfg, loaders, model) == trainer._last_eval_results


def test_the_checkpointer_saves_and_loads_by_name(tmp_path):
    model, optimizer = nn.Linear(2, 2), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kept = Checkpointer(model, tmp_path, optimizer=optimizer)
    assert not kept.has_checkpoint()
    assert kept.get_checkpoint_file() == ""
    kept.save("mine", iteration=4, note="x")
    optimizer.param_groups[0]["lr"] = 9.0
    again = Checkpointer(nn.Linear(2, 2), tmp_path, optimizer=optimizer)
    assert again.resume_or_load("") == {"iteration": 4, "note": "x"}
    assert same_bits(again.model, model)
    assert optimizer.param_groups[0]["lr"] == 0.1
    Checkpointer(model, tmp_path / "no", save_to_disk=False).save("a")
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
def test_a_graph_trainer_compiles_and_ends_where_the_eager_one_does(tmp_path):
    cfg = config(tmp_path / "graph", evaluation={"enabled": False}, train_iter=3)
    cfg["graph"] = {"enabled": True, "backend": "eager"}
    compiled = trained(cfg)
    assert isinstance(compiled._trainer, GraphTrainer)
    eager = trained(config(tmp_path / "e", evaluation={"enabled": False}, train_iter=3))
    assert same_bits(compiled.model, eager.model)
    assert isinstance(compiled.graph_eval, GraphBase)


def test_amp_trains_in_half_precision_and_rejects_a_custom_backward(tmp_path):
    quick = {"amp": {"enabled": True}, "train_iter": 2, "evaluation": {"enabled": False}}
    assert trained(config(tmp_path / "a", **quick)).iter == 2
    with pytest.raises(RuntimeError, match="fp16 scales losses"):
        MyTrainer(config(tmp_path / "b", **quick)).train()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"log_perod": 3}, "did you mean 'log_period'"),
        ({"evaluation": {"eval_perid": 3}}, "train.evaluation has no 'eval_perid'"),
        ({"zero_optimization": {"stage": 7}}, "expected 1 or 2 or 3"),
        ({"dist": {"data_parallel_size": 3}}, "processes, but there are 1"),
        ({"consumed_train_samples": 64}, "expected 0: checkpoints store the position"),
        ({"nccl_fusion_max_ops": 12}, "expected 24 or 0: it belongs to OneFlow"),
        ({"amp": True}, "train.amp is True, expected a section"),
        ({"dist": {"pipeline_parallel_size": 2}}, "cannot be cut into stages"),
        ({"dist": {"tensor_parallel_size": 2}}, "2 processes"),
        ({"activation_checkpoint": {"enabled": True}}, "set_activation_checkpoint"),
    ],
)
def test_every_option_is_used_or_refused(tmp_path, section, message):
    with pytest.raises((TypeError, ValueError), match=message):
        DefaultTrainer(config(tmp_path, **section))


def test_a_batch_that_is_no_dict_and_a_model_without_losses_are_refused(tmp_path):
    with pytest.raises(TypeError, match="expected a dict of the model's arguments"):
        DefaultTrainer.get_batch((1, 2))
    mixed = DefaultTrainer.get_batch(
        {"images": 1, "labels": 2}, "cpu", mixup_func=lambda x, y: (x + 1, y + 1)
    )
    assert mixed == {"images": 2, "labels": 3}

    class Lossless(Net):
        def forward(self, images, labels=None):
            return {"scores": self.layers(images)}

    cfg = config(tmp_path)
    model = Lossless()
    loader = DataLoader(Digits(0, 40), batch_size=8)
    trainer = EagerTrainer(model, loader, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="expected a dict with a loss"):
        trainer.train(0, 2)
    assert cfg.train.train_iter == 12


def test_an_eager_trainer_stands_alone(tmp_path):
    model = Net()
    loader = DataLoader(Digits(0, 40), batch_size=8)
    trainer = EagerTrainer(model, loader, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    losses = Losses()
    trainer.register_hooks([losses])
    trainer.train(0, 5)
    assert [at for at, _ in losses.seen] == [0, 1, 2, 3, 4]


def test_a_custom_writer_writes_and_two_windows_are_refused(tmp_path):
    class Mine(EventWriter):
        def __init__(self):
            self.seen, self.closed = [], False

        def write(self):
            self.seen.append(get_event_storage().iter)

        def close(self):
            self.closed = True

    class Puts(Bare):
        def run_step(self):
            get_event_storage().put_scalar("x", float(self.iter))

    mine = Mine()
    trainer = Puts([])
    trainer.register_hooks([hooks.PeriodicWriter([mine], period=2)])
    trainer.train(0, 5)
    assert (mine.seen, mine.closed) == ([1, 3, 4], True)
    writers = [JSONWriter(tmp_path / "a.json", 5), JSONWriter(tmp_path / "b.json", 20)]
    trainer = Puts([])
    trainer.register_hooks([hooks.PeriodicWriter(writers)])
    with pytest.raises(ValueError, match="different smoothing windows"):
        trainer.train(0, 1)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda o: scheduler.WarmupCosineLR(o, 8, 0.5, 4, alpha=0.0), [0.5, 0.5, 0.5, 0.5, 0.5]),
        (lambda o: scheduler.WarmupCosineAnnealingLR(o, 4, 1.0, 0, eta_min=0.5), [1, None, 0.75]),
        (lambda o: scheduler.WarmupStepLR(o, 9, 0.1, 2, 2, 0.5, "constant"), [0.1, 0.1, 0.5]),
        (lambda o: scheduler.WarmupMultiStepLR(o, 9, 0.1, 0, [1, 3]), [1, 0.1, 0.1, 0.01]),
        (lambda o: scheduler.WarmupExponentialLR(o, 9, 0.5, 1.0, 0), [1, 0.5, 0.25]),
        (lambda o: scheduler.WarmupPolynomialLR(o, 4, 1.0, 0, 0.0), [1, 0.75, 0.5, 0.25, 0]),
        (
            lambda o: scheduler.WarmupPolynomialLR(o, 2, 1.0, 0, 0.0, cycle=True),
            [1, 0.5, 0, 0.25],
        ),
    ],
)
def test_the_schedules_have_their_shapes(make, expected, caplog):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    rate = make(optimizer)
    for value in expected:
        if value is not None:
            assert optimizer.param_groups[0]["lr"] == pytest.approx(value)
        optimizer.step()
        rate.step()
    with caplog.at_level(logging.WARNING, "libai"):
        scheduler.WarmupStepLR(optimizer, 3, 0.1, 9, 1)
    assert "longer than the run" in caplog.text
    with pytest.raises(ValueError, match="'linear' or 'constant'"):
        scheduler.WarmupStepLR(optimizer, 3, 0.1, 1, 1, warmup_method="no")


def test_parameter_groups_have_their_options():
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    groups = get_default_optimizer_params(
        model, base_lr=0.1, weight_decay=0.5, weight_decay_norm=0.0, weight_decay_bias=0.0,
        clip_grad_max_norm=1.0, clip_grad_norm_type=2.0, overrides={"weight": {"lr": 0.3}},
    )  # fmt: skip
    found = sorted((g["weight_decay"], g["lr"], len(g["params"])) for g in groups)
    assert found == [(0.0, 0.1, 2), (0.0, 0.3, 1), (0.5, 0.3, 1)]
    assert all((g["clip_norm"], g["norm_type"]) == (1.0, 2.0) for g in groups)


def test_this_process_knows_its_place():
    assert (distributed.get_rank(), distributed.get_world_size()) == (0, 1)
    assert (distributed.get_local_rank(), distributed.is_last_process()) == (0, True)
    distributed.synchronize()


def test_images_reach_tensorboard_once(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Draws(Bare):
        def run_step(self):
            storage = get_event_storage()
            storage.put_scalar("x", 1.0)
            storage.put_image("face", torch.zeros(3, 4, 4))

    trainer = Draws([])
    trainer.register_hooks([hooks.PeriodicWriter([TensorboardXWriter(tmp_path)], period=2)])
    trainer.train(0, 4)
    board = EventAccumulator(str(tmp_path), size_guidance={"images": 0})
    board.Reload()
    assert [one.step for one in board.Images("face")] == [0, 1, 2, 3]
    assert [one.step for one in board.Scalars("x")] == [1, 3]


@pytest.mark.parametrize(
    ("results", "message"), [(3, "expected a dict"), ({"a": "x"}, "expected a number")]
)
def test_an_evaluation_that_gives_no_numbers_is_refused(results, message):
    trainer = Bare([])
    trainer.register_hooks([hooks.EvalHook(2, lambda: results)])
    with pytest.raises((TypeError, ValueError), match=message) as error:
        trainer.train(0, 2)
    assert "EvalHook" in "".join(error.value.__notes__)


def test_a_best_that_no_evaluation_gives_is_reported(tmp_path, caplog):
    trainer = Bare([])
    kept = Checkpointer(nn.Linear(1, 1), tmp_path)
    trainer.register_hooks(
        [
            hooks.EvalHook(0, lambda: {"Acc@1": 3.0}),
            hooks.BestCheckpointer(0, kept, "Acc@2", mode="min"),
        ]
    )
    with caplog.at_level(logging.WARNING, "libai"):
        trainer.train(0, 2)
    assert "did you mean 'Acc@1'" in caplog.text
    with pytest.raises(ValueError, match="'min' or 'max'"):
        hooks.BestCheckpointer(1, kept, "a", mode="up")
    with pytest.raises(ValueError, match="max_to_keep"):
        hooks.PeriodicCheckpointer(kept, 1, max_to_keep=0)
